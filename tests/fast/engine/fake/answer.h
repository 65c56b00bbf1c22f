#define LOGPROB "-1.5"
const char * answer(void);
