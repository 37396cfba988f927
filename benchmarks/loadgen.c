// Closed-loop HTTP/1.1 and WebSocket load generator: one thread, epoll, every reply checked.
//
//   loadgen -p PORT -f SIDS [-c CONNECTIONS] [-d SECONDS] [-w WARM-UP] [-m sticky|alt|rand] [-P path] [-A accept]
//           [-B upload bytes] [-r requests per connection] [-t mean think time, us] [-S seed] [-W] [-Q]
//
// SIDS is a file with one session ID a line; the second character of an ID is the number of the worker that owns it.
// -m sticky keeps one session per connection, alt takes them in turn, rand draws one per request. -W: WebSocket, one
// text message there and back counts as a request. -Q gives each request a query of its own. Checked: status 200, and for replies that name them the session and
// "worker": N. Prints one JSON line; times in microseconds.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 1 << 20, MOST_SIDS = 65536, MOST_TIMES = 4000000 };

typedef struct {
    int64_t next;       // when to send again, with think time
    int64_t sent;       // when the request was sent
    int fd, number, sid, length, open;  // open: the WebSocket handshake is done
    long requests, here;                // in all; on this connection
    char buffer[BUFFER];
} conn;

static int port = 8000, connections = 1, sids = 0, upload = 0, websocket = 0, queries = 0, seed = 1, poller;
static double seconds = 2, warm = 0.3, think = 0;
static const char *mode = "sticky", *path = "/", *accepts = "application/json";
static long per_connection = 0, errors = 0, wrong = 0, redials = 0, times = 0;
static char (*sid)[64];
static uint32_t *took;
static char *post;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void die(const char *what) { perror(what); exit(2); }

static int dial(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (void *)&a, sizeof a)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void watch(conn *c) {
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    c->fd = dial();
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e);
}

static void send_all(int fd, const char *data, int size) {
    while (size) {
        int n = write(fd, data, size);
        if (n < 0) {
            if (errno == EAGAIN) { usleep(50); continue; }
            return;  // the server closed: seen when the reply is read
        }
        data += n; size -= n;
    }
}

static void fire(conn *c) {
    static char head[4096], query[32];
    static long count = 0;
    int n;
    c->length = 0;
    if (websocket && c->open) {
        n = 6 + sprintf(head + 6, "message %ld of %s", c->requests++, sid[c->sid]);
        memcpy(head, (char[]){(char)0x81, (char)(0x80 | (n - 6)), 0, 0, 0, 0}, 6);  // masked by zeros
        c->sent = now();
        send_all(c->fd, head, n);
        return;
    }
    if (mode[0] == 's') c->sid = c->number % sids;
    else if (mode[0] == 'a') c->sid = (c->number + c->requests) % sids;
    else c->sid = rand() % sids;
    c->requests++;
    if (queries) sprintf(query, "?n=%ld", ++count);
    n = sprintf(head, "%s %s%s HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: loadgen\r\nAccept: %s\r\nCookie: theme=dark; sid=%s\r\n",
                upload ? "POST" : "GET", path, query, accepts, sid[c->sid]);
    if (upload) n += sprintf(head + n, "Content-Type: application/octet-stream\r\nContent-Length: %d\r\n", upload);
    if (websocket)
        n += sprintf(head + n, "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                               "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n");
    n += sprintf(head + n, "\r\n");
    c->sent = now();
    if (!upload) { send_all(c->fd, head, n); return; }
    memcpy(post, head, n);
    memset(post + n, 'x', upload);
    send_all(c->fd, post, n + upload);
}

static void redial(conn *c) {
    epoll_ctl(poller, EPOLL_CTL_DEL, c->fd, 0);
    close(c->fd);
    c->open = 0; c->here = 0; redials++;
    watch(c);
}

// The reply in the buffer is complete: 1; it must be read on: 0. Sets status, body and whether the server closes.
static int complete(conn *c, int *status, char **body, int *size, int *closes) {
    c->buffer[c->length] = 0;
    *closes = 0;
    if (websocket && c->open) {
        if (c->length < 2) return 0;
        *status = 200; *body = c->buffer + 2; *size = c->buffer[1] & 127;
        return c->length >= 2 + *size;
    }
    char *end = strstr(c->buffer, "\r\n\r\n");
    if (!end) return 0;
    *end = 0;
    char *length = strcasestr(c->buffer, "\r\ncontent-length:");
    int chunked = strcasestr(c->buffer, "\r\ntransfer-encoding: chunked") != 0;
    *status = atoi(c->buffer + 9);
    *closes = strcasestr(c->buffer, "\r\nconnection: close") != 0;
    *end = '\r';
    *body = end + 4;
    *size = c->length - (int)(*body - c->buffer);
    if (*status == 101) return 1;
    if (chunked) return *size >= 5 && !memcmp(c->buffer + c->length - 5, "0\r\n\r\n", 5);
    int wanted = length ? atoi(length + 17) : 0;
    if (*size < wanted) return 0;
    *size = wanted;
    return 1;
}

static void check(conn *c, int status, char *body, int size) {
    if (status != 200) { errors++; return; }
    body[size] = 0;
    if (!strstr(path, "big") && !strstr(body, sid[c->sid])) errors++;
    char *worker = strstr(body, "\"worker\":");
    if (worker && worker[worker[9] == ' ' ? 10 : 9] != sid[c->sid][1]) wrong++;
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(uint32_t *)a, y = *(uint32_t *)b;
    return x < y ? -1 : x > y;
}

int main(int n, char **v) {
    int o;
    const char *file = 0;
    while ((o = getopt(n, v, "p:c:d:w:m:f:P:A:B:r:S:t:WQ")) != -1) switch (o) {
        case 'p': port = atoi(optarg); break;
        case 'c': connections = atoi(optarg); break;
        case 'd': seconds = atof(optarg); break;
        case 'w': warm = atof(optarg); break;
        case 'm': mode = optarg; break;
        case 'f': file = optarg; break;
        case 'P': path = optarg; break;
        case 'A': accepts = optarg; break;
        case 'B': upload = atoi(optarg); break;
        case 'r': per_connection = atol(optarg); break;
        case 'S': seed = atoi(optarg); break;
        case 't': think = atof(optarg); break;
        case 'W': websocket = 1; break;
        case 'Q': queries = 1; break;
        default: return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    srand(seed);
    sid = calloc(MOST_SIDS, 64);
    FILE *in = file ? fopen(file, "r") : 0;
    if (!in) die("SIDS");
    while (sids < MOST_SIDS && fscanf(in, "%63s", sid[sids]) == 1) sids++;
    fclose(in);
    if (!sids) return 2;
    post = malloc(upload + 4096);
    took = malloc(MOST_TIMES * sizeof *took);
    poller = epoll_create1(0);
    conn *all = calloc(connections, sizeof(conn));
    for (int i = 0; i < connections; i++) { all[i].number = i; watch(&all[i]); }
    int64_t start = now(), measured = start + (int64_t)(warm * 1e9), end = measured + (int64_t)(seconds * 1e9), last = start;
    for (int i = 0; i < connections; i++) fire(&all[i]);
    struct epoll_event event[256];
    for (;;) {
        int wait = 1000;
        if (think > 0) wait = 1;
        int ready = epoll_wait(poller, event, 256, wait);
        int64_t t = now();
        if (t >= end) break;
        if (!ready && t - last > 5000000000LL) { errors++; fprintf(stderr, "stalled\n"); break; }
        if (think > 0)
            for (int i = 0; i < connections; i++)
                if (all[i].next && all[i].next <= t) { all[i].next = 0; fire(&all[i]); }
        for (int i = 0; i < ready; i++) {
            conn *c = event[i].data.ptr;
            int got = read(c->fd, c->buffer + c->length, BUFFER - 1 - c->length), status, size, closes;
            char *body;
            if (got <= 0) {
                if (got < 0 && errno == EAGAIN) continue;
                if (!c->next) errors++;
                redial(c);
                if (!c->next) fire(c);
                continue;
            }
            c->length += got;
            if (!complete(c, &status, &body, &size, &closes)) continue;
            last = t = now();
            if (status == 101) { c->open = 1; fire(c); continue; }
            check(c, status, body, size);
            if (t >= measured && times < MOST_TIMES) took[times++] = (uint32_t)(t - c->sent);
            c->here++;
            if (closes || (per_connection && c->here >= per_connection)) redial(c);
            if (think > 0) c->next = now() + (int64_t)(-log((rand() + 1.0) / (RAND_MAX + 2.0)) * think * 1000);
            else fire(c);
        }
    }
    double lasted = (now() - measured) / 1e9;
    long got = times ? times : 1;
    qsort(took, times, sizeof *took, by_size);
    printf("{\"n\":%ld,\"rps\":%.1f,\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"errors\":%ld,\"wrong\":%ld,\"redials\":%ld}\n",
           times, times / lasted, took[got / 2] / 1e3, took[got * 9 / 10] / 1e3, took[got * 99 / 100] / 1e3, errors, wrong, redials);
    return 0;
}
