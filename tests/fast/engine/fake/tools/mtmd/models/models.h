#define MTMD_INTERNAL
#define MTMD_WORD "vision 1"
