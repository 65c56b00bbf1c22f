"""The engine's graph allocator, replayed: what buffer a sequence of operations needs, holes and all.

ggml gives each result the best fitting hole of one buffer, writes over a parent where the operation allows it, and
frees a result after its last reader. The buffer's size is the highest end that was ever in use.
Follows ggml/src/ggml-alloc.c of the pin: ggml_dyn_tallocr_alloc, …_free_bytes, ggml_gallocr_allocate_node,
ggml_gallocr_alloc_graph_impl.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_ALIGN = 32  # TENSOR_ALIGNMENT of the CPU; devices use up to 256, which changes nothing that can be seen


@dataclass(slots=True)
class _Node:
    size: int
    sources: tuple[int, ...] = ()
    inplace: bool = False
    kept: bool = False  # never freed, never written over: GGML_TENSOR_FLAG_OUTPUT
    view_of: int | None = None
    layout: object = None  # two nodes of one layout may share memory
    children: int = 0
    views: int = 0
    at: int | None = None  # where it lies; None: not allocated


@dataclass(slots=True)
class Graph:
    """Operations in the order of their evaluation. Sizes are bytes; weights and caches are not in it."""

    _nodes: list[_Node] = field(default_factory=list)
    _order: list[int] = field(default_factory=list)
    _inputs: list[int] = field(default_factory=list)

    def input(self, size: int, *, kept: bool = False) -> int:
        """A tensor that is filled before the evaluation; it is laid out first. One that nobody reads stays for good,
        and so does one that is `kept`."""
        self._nodes.append(_Node(max(size, 0), kept=kept))
        self._inputs.append(len(self._nodes) - 1)
        return len(self._nodes) - 1

    def op(self, size: int, *sources: int) -> int:
        """A result of its own."""
        return self._add(_Node(max(size, 0), sources))

    def over(self, size: int, *sources: int) -> int:
        """A result that may be written over a parent of the same size whose only reader it is."""
        return self._add(_Node(max(size, 0), sources, inplace=True))

    def view(self, source: int) -> int:
        """Another look at a result; of the whole of it, so that an operation may write over it."""
        root = self._nodes[source].view_of
        return self._add(_Node(self._nodes[source].size, (source,), view_of=source if root is None else root))

    def part(self, source: int, size: int) -> int:
        """A look at a part of a result, strided: nothing is written over it."""
        root = self._nodes[source].view_of
        made = self._add(_Node(size, (source,), view_of=source if root is None else root))
        self._nodes[made].layout = made
        return made

    def set_rows(self, into: int, *sources: int) -> int:
        """Rows written into a result: another look at it, that is made after its sources."""
        root = self._nodes[into].view_of
        return self._add(_Node(self._nodes[into].size, (*sources, into), view_of=into if root is None else root))

    def _add(self, node: _Node) -> int:
        self._nodes.append(node)
        self._order.append(len(self._nodes) - 1)
        return len(self._nodes) - 1

    def peak(self) -> int:
        """The size of the buffer."""
        nodes, heap = self._nodes, _Heap()
        for node in nodes:
            node.children = node.views = 0
            node.at = None
        for index in self._inputs:
            nodes[index].at = heap.take(nodes[index].size)
        for index in self._order:
            node = nodes[index]
            if node.view_of is not None:
                nodes[node.view_of].views += 1
            for source in node.sources:
                nodes[source].children += 1
        for index in self._order:
            node = nodes[index]
            if node.view_of is None and not self._write_over(node, heap):
                node.at = heap.take(node.size)
            for source in node.sources:
                self._release(nodes[source], heap)
        return heap.peak

    def _write_over(self, node: _Node, heap: _Heap) -> bool:
        if not node.inplace:
            return False
        for source in node.sources:
            parent = self._nodes[source]
            if parent.kept or parent.at is None or parent.size != node.size or parent.children != 1 or parent.views:
                continue  # a view is never written over: the allocator doesn't count it among its own (:589-591, 636)
            node.at, parent.at = parent.at, None
            return True
        return False

    def _release(self, parent: _Node, heap: _Heap) -> None:
        parent.children -= 1
        if parent.children or parent.views:
            return
        if parent.view_of is None:
            if parent.at is not None and not parent.kept:
                heap.give(parent.at, parent.size)
                parent.at = None
            return
        root = self._nodes[parent.view_of]
        root.views -= 1
        if not root.views and not root.children and root.at is not None and not root.kept:
            heap.give(root.at, root.size)
            root.at = None


class _Heap:
    """Holes by offset; the last one has no end."""

    def __init__(self) -> None:
        self._holes: list[list[int]] = [[0, 1 << 62]]
        self.peak = 0

    def take(self, size: int) -> int:
        size = -(-size // _ALIGN) * _ALIGN
        best, best_size = len(self._holes) - 1, 0
        for index in range(len(self._holes) - 1):
            length = self._holes[index][1]
            # the engine's comparison is <=: of two equal holes it takes the later
            if length >= size and (not best_size or length <= best_size):
                best, best_size = index, length
        hole = self._holes[best]
        offset = hole[0]
        hole[0] += size
        hole[1] -= size
        if not hole[1]:
            del self._holes[best]
        self.peak = max(self.peak, offset + size)
        return offset

    def give(self, offset: int, size: int) -> None:
        size = -(-size // _ALIGN) * _ALIGN
        holes = self._holes
        for index, hole in enumerate(holes):
            if hole[0] + hole[1] == offset:
                hole[1] += size
                if index + 1 < len(holes) and hole[0] + hole[1] == holes[index + 1][0]:
                    hole[1] += holes[index + 1][1]
                    del holes[index + 1]
                return
            if offset + size == hole[0]:
                hole[0] = offset
                hole[1] += size
                return
            if hole[0] > offset:
                holes.insert(index, [offset, size])
                return
        holes.append([offset, size])
