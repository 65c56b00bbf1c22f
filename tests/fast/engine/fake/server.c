#include "answer.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#ifdef WITH_MTMD
const char * mtmd_word(void);
#else
static const char * mtmd_word(void) { return "no vision"; }
#endif

static int serve(const char * path) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *) &address, sizeof(address)) || listen(listener, 8)) {
        return 1;
    }
    for (;;) {
        char request[65536], reply[1024];
        int peer = accept(listener, NULL, NULL);
        ssize_t size = 0, more;
        do { // head and body may come apart: a POST ends with the brace of its JSON
            more = read(peer, request + size, sizeof(request) - 1 - size);
            size += more > 0 ? more : 0;
            request[size] = 0;
        } while (more > 0 && !strncmp(request, "POST", 4) && request[size - 1] != '}');
        int completes = strncmp(request, "POST", 4) == 0;
#ifdef DIES_OF_ILLEGAL_INSTRUCTION
        if (completes) {
            raise(SIGILL);
        }
#endif
        const char * body = completes ? answer() : "{}";
        int length = snprintf(reply, sizeof(reply), "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
                              strlen(body), body);
        if (write(peer, reply, length) < 0) {
            return 1;
        }
        close(peer);
    }
}

int main(int argc, char ** argv) {
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--version")) {
            printf("version: 0 (build %s, commit %s)\n%s\n", NUMBER, COMMIT, mtmd_word());
            return 0;
        }
        if (!strcmp(argv[i], "--help")) {
            printf("-c,    --ctx-size N        how many tokens\n-m,    --model FILE        the model\n"
                   "-ctk,  --cache-type-k TYPE  the type of K\n                     allowed values: f16, q8_0\n");
            return 0;
        }
        if (!strcmp(argv[i], "-n")) {
            fprintf(stderr, "error while handling argument \"-n\": stoi\n");
            return 1;
        }
        if (!strcmp(argv[i], "--host") && i + 1 < argc) {
            return serve(argv[i + 1]);
        }
    }
    return 2;
}
