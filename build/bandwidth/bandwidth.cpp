// kvlaunch: how fast bytes go between host memory and a device, through the engine's own backends.
//
//   kvlaunch-bandwidth [--rpc HOST:PORT]... [--device NAME]... [--sizes MIB,MIB,...] [--seconds S] [--host]
//
// One JSON object a line: one per device, and with --host one for reading host memory with all threads.
// Exit 0: all measured. 1: a device failed (its line has "error"). 2: wrong usage, or no such device.

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using clock_type = std::chrono::steady_clock;

struct options {
    std::vector<std::string> rpc;
    std::vector<std::string> devices;
    std::vector<size_t> sizes = { 1u << 20, 16u << 20, 64u << 20 };
    double seconds = 0.25; // for each figure
    bool host = false;
};

double since(clock_type::time_point start) {
    return std::chrono::duration<double>(clock_type::now() - start).count();
}

// Times of `work` until the budget is used up, at least three, the first (pages, connections, a sleeping link) dropped.
template <typename Work> std::vector<double> repeat(double seconds, Work work) {
    work();
    std::vector<double> times;
    const auto start = clock_type::now();
    while (times.size() < 3 || (since(start) < seconds && times.size() < 100)) {
        const auto begin = clock_type::now();
        work();
        times.push_back(since(begin));
    }
    return times;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

std::string quoted(const char * text) {
    std::string out = "\"";
    for (const char * c = text; *c; ++c) {
        if (*c == '"' || *c == '\\') {
            out += '\\';
        }
        out += (unsigned char) *c < 0x20 ? ' ' : *c;
    }
    return out + "\"";
}

// One tensor in the device's memory.
class target {
  public:
    target(ggml_backend_dev_t device, size_t bytes) {
        ctx.reset(ggml_init({ ggml_tensor_overhead() * 2, nullptr, true }));
        tensor = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I8, (int64_t) bytes);
        buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_dev_buffer_type(device)));
    }

    bool ok() const { return buffer != nullptr; }

    void set(const void * from, size_t bytes) { ggml_backend_tensor_set(tensor, from, 0, bytes); }
    void get(void * into, size_t bytes) { ggml_backend_tensor_get(tensor, into, 0, bytes); }

  private:
    struct free_ctx { void operator()(ggml_context * p) const { ggml_free(p); } };
    struct free_buffer { void operator()(ggml_backend_buffer * p) const { ggml_backend_buffer_free(p); } };
    std::unique_ptr<ggml_context, free_ctx> ctx;
    std::unique_ptr<ggml_backend_buffer, free_buffer> buffer;
    ggml_tensor * tensor = nullptr;
};

// Host memory of one kind, filled so that every page is there.
class host_memory {
  public:
    host_memory(ggml_backend_dev_t device, bool pinned, size_t bytes) {
        if (pinned) {
            ggml_backend_buffer_type_t type = ggml_backend_dev_host_buffer_type(device);
            buffer = type ? ggml_backend_buft_alloc_buffer(type, bytes) : nullptr;
            base = buffer ? ggml_backend_buffer_get_base(buffer) : nullptr;
        } else {
            base = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        }
        if (base) {
            memset(base, 1, bytes);
        }
    }
    ~host_memory() {
        if (buffer) {
            ggml_backend_buffer_free(buffer);
        } else {
            free(base);
        }
    }
    host_memory(const host_memory &) = delete;
    host_memory & operator=(const host_memory &) = delete;

    void * base = nullptr;

  private:
    ggml_backend_buffer_t buffer = nullptr;
};

void print_copies(target & to, const host_memory & from, const char * kind, const options & opt, bool & first) {
    for (const size_t bytes : opt.sizes) {
        // A backend may return from `set` before the bytes are there (RPC sends and goes on): one byte is read back at
        // the end, and several sets share that round trip.
        const size_t batch = std::max<size_t>(1, (16u << 20) / bytes);
        const auto up = repeat(opt.seconds, [&] {
            for (size_t i = 0; i < batch; ++i) {
                to.set(from.base, bytes);
            }
            char last = 0;
            to.get(&last, 1);
        });
        const auto down = repeat(opt.seconds, [&] {
            for (size_t i = 0; i < batch; ++i) {
                to.get(from.base, bytes);
            }
        });
        for (const auto * times : { &up, &down }) {
            const double rate = (double) (bytes * batch) / 1e9;
            printf("%s{\"bytes\": %zu, \"direction\": \"%s\", \"host\": \"%s\", \"gbps\": %.4f, \"best\": %.4f, \"runs\": %zu}",
                   first ? "" : ", ", bytes, times == &up ? "h2d" : "d2h", kind, rate / median(*times),
                   rate / *std::min_element(times->begin(), times->end()), times->size());
            first = false;
        }
    }
}

bool measure(ggml_backend_dev_t device, const options & opt) {
    const size_t largest = *std::max_element(opt.sizes.begin(), opt.sizes.end());
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    ggml_backend_dev_memory(device, &free_bytes, &total_bytes);
    printf("{\"device\": %s, \"description\": %s, \"memory_total\": %zu, \"memory_free\": %zu, ",
           quoted(ggml_backend_dev_name(device)).c_str(), quoted(ggml_backend_dev_description(device)).c_str(),
           total_bytes, free_bytes);
    target to(device, largest);
    host_memory pageable(device, false, largest);
    if (!to.ok() || pageable.base == nullptr) {
        printf("\"error\": \"cannot allocate %zu bytes on the device or the host\"}\n", largest);
        return false;
    }
    to.set(pageable.base, largest); // a device that has never been written may answer from a page of zeros
    char byte = 0;
    const auto round_trips = repeat(opt.seconds / 4, [&] { to.get(&byte, 1); });
    printf("\"latency_us\": %.2f, \"copies\": [", median(round_trips) * 1e6);
    bool first = true;
    const host_memory pinned(device, true, largest);
    if (pinned.base != nullptr) {
        print_copies(to, pinned, "pinned", opt, first);
    }
    print_copies(to, pageable, "pageable", opt, first);
    printf("]}\n");
    fflush(stdout);
    return true;
}

// Reading far more than the caches hold, a slice a thread: what decode does with weights and cache on the host.
void measure_host(const options & opt) {
    const size_t threads = std::max(1u, std::thread::hardware_concurrency());
    const size_t words = (512u << 20) / sizeof(uint64_t);
    std::vector<uint64_t> memory(words, 1);
    std::vector<uint64_t> sums(threads * 8); // a cache line each
    const auto times = repeat(opt.seconds * 4, [&] {
        std::vector<std::thread> pool;
        for (size_t t = 0; t < threads; ++t) {
            pool.emplace_back([&, t] {
                const uint64_t * from = memory.data() + words / threads * t;
                const uint64_t * end = from + words / threads;
                uint64_t a = 0, b = 0, c = 0, d = 0;
                for (; from + 4 <= end; from += 4) {
                    a += from[0];
                    b += from[1];
                    c += from[2];
                    d += from[3];
                }
                sums[t * 8] = a + b + c + d;
            });
        }
        for (auto & thread : pool) {
            thread.join();
        }
    });
    uint64_t sum = 0;
    for (size_t t = 0; t < threads; ++t) {
        sum += sums[t * 8];
    }
    const double rate = (double) (words * sizeof(uint64_t)) / 1e9;
    printf("{\"device\": \"host\", \"threads\": %zu, \"read_gbps\": %.3f, \"best\": %.3f, \"runs\": %zu, \"sum\": %llu}\n",
           threads, rate / median(times), rate / *std::min_element(times.begin(), times.end()), times.size(),
           (unsigned long long) sum); // printed so that no compiler leaves the reading out
}

bool parse(int argc, char ** argv, options & opt) {
    for (int i = 1; i < argc; ++i) {
        const std::string arg = argv[i];
        if (arg == "--host") {
            opt.host = true;
            continue;
        }
        if (i + 1 >= argc) {
            return false;
        }
        const char * value = argv[++i];
        char * end = nullptr;
        if (arg == "--rpc") {
            opt.rpc.emplace_back(value);
        } else if (arg == "--device") {
            opt.devices.emplace_back(value);
        } else if (arg == "--seconds") {
            opt.seconds = strtod(value, &end);
            if (*end || !(opt.seconds > 0 && opt.seconds <= 60)) {
                return false;
            }
        } else if (arg == "--sizes") {
            opt.sizes.clear();
            for (const char * at = value;; at = end + 1) {
                const unsigned long mib = strtoul(at, &end, 10);
                if (end == at || mib < 1 || mib > 1024 || (*end && *end != ',')) {
                    return false;
                }
                opt.sizes.push_back((size_t) mib << 20);
                if (!*end) {
                    break;
                }
            }
        } else {
            return false;
        }
    }
    return true;
}

bool add_rpc(const std::vector<std::string> & endpoints) {
    if (endpoints.empty()) {
        return true;
    }
    ggml_backend_reg_t reg = ggml_backend_reg_by_name("RPC");
    using add_server = ggml_backend_reg_t (*)(const char *);
    auto add = reg ? (add_server) ggml_backend_reg_get_proc_address(reg, "ggml_backend_rpc_add_server") : nullptr;
    for (const std::string & endpoint : endpoints) {
        ggml_backend_reg_t server = add ? add(endpoint.c_str()) : nullptr;
        if (server == nullptr) {
            fprintf(stderr, "no rpc worker answers at %s\n", endpoint.c_str());
            return false;
        }
        ggml_backend_register(server);
    }
    return true;
}

} // namespace

int main(int argc, char ** argv) {
    options opt;
    if (!parse(argc, argv, opt)) {
        fprintf(stderr, "usage: kvlaunch-bandwidth [--rpc HOST:PORT] [--device NAME] [--sizes 1,16,64] [--seconds 0.25] [--host]\n");
        return 2;
    }
    ggml_backend_load_all();
    if (!add_rpc(opt.rpc)) {
        return 2;
    }
    bool good = true;
    size_t measured = 0;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        const std::string name = ggml_backend_dev_name(device);
        const bool wanted = std::find(opt.devices.begin(), opt.devices.end(), name) != opt.devices.end();
        const bool cpu = ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU ||
                         ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_ACCEL;
        if (wanted || (opt.devices.empty() && !cpu)) {
            good = measure(device, opt) && good;
            ++measured;
        }
    }
    if (measured < opt.devices.size()) {
        fprintf(stderr, "not every device that was asked for is there\n");
        return 2;
    }
    if (opt.host) {
        measure_host(opt);
    }
    return good ? 0 : 1;
}
