// as upstream's mtmd-helper.cpp: an internal header that is there already is an error
#ifdef MTMD_INTERNAL
#error "the precompiled header reaches beyond models/"
#endif
extern "C" int mtmd(void) { return 1; }
