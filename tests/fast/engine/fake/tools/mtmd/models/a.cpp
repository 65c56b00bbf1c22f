#include "models.h"
extern "C" const char * mtmd_word(void) { return MTMD_WORD; }
