// The bare loopback request/answer loop that NVMe/TCP figures are held against.
// Requests are 72 bytes (header + capsule); answers have the size given (24 + data).
//   echo s PORT ANSWER_BYTES                            serve
//   echo c PORT ANSWER_BYTES CONNECTIONS DEPTH MILLISECONDS  measure: requests/s, p50 and p99 in microseconds
// BUSY=1 polls without sleeping; otherwise both sides block in epoll_wait.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { REQUEST_BYTES = 72, DEPTH_MAX = 256, EVENTS = 64, ANSWER_POOL_BYTES = 8 << 20, LATENCY_MAX_US = 2000000 };

static int wait_ms;

static void fail(const char *what) { perror(what); exit(1); }

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void tune(int fd) {
    int one = 1, buffer = 4 << 20;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    fcntl(fd, F_SETFL, O_NONBLOCK);
}

static struct sockaddr_in loopback(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void watch(int ep, int op, int fd, uint32_t events, void *who) {
    struct epoll_event e = {.events = events, .data.ptr = who};
    epoll_ctl(ep, op, fd, &e);
}

struct peer { int fd; size_t request_bytes, answer_bytes; };

static void serve(int port, size_t answer_bytes) {
    struct sockaddr_in address = loopback(port);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), ep = epoll_create1(0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&address, sizeof address)) fail("bind");
    listen(listener, 256);
    fcntl(listener, F_SETFL, O_NONBLOCK);
    watch(ep, EPOLL_CTL_ADD, listener, EPOLLIN, NULL);
    static char in[65536];
    char *answers = malloc(ANSWER_POOL_BYTES);
    memset(answers, 7, ANSWER_POOL_BYTES);
    struct epoll_event ready[EVENTS];
    for (;;) {
        int n = epoll_wait(ep, ready, EVENTS, wait_ms);
        for (int i = 0; i < n; i++) {
            struct peer *p = ready[i].data.ptr;
            if (!p) {
                int fd = accept(listener, NULL, NULL);
                if (fd < 0) continue;
                tune(fd);
                p = calloc(1, sizeof *p);
                p->fd = fd;
                watch(ep, EPOLL_CTL_ADD, fd, EPOLLIN, p);
                continue;
            }
            ssize_t got = recv(p->fd, in, sizeof in, 0);
            if (got == 0 || (got < 0 && errno != EAGAIN)) { close(p->fd); free(p); continue; }
            if (got > 0) {
                p->request_bytes += got;
                p->answer_bytes += p->request_bytes / REQUEST_BYTES * answer_bytes;
                p->request_bytes %= REQUEST_BYTES;
            }
            while (p->answer_bytes) {
                size_t part = p->answer_bytes < ANSWER_POOL_BYTES ? p->answer_bytes : ANSWER_POOL_BYTES;
                ssize_t sent = send(p->fd, answers, part, MSG_NOSIGNAL);
                if (sent < 0) break;
                p->answer_bytes -= sent;
            }
            if (p->answer_bytes || (ready[i].events & EPOLLOUT))
                watch(ep, EPOLL_CTL_MOD, p->fd, EPOLLIN | (p->answer_bytes ? EPOLLOUT : 0), p);
        }
    }
}

struct flow { int fd; size_t answer_bytes; uint64_t started_ns[DEPTH_MAX]; int oldest; };

static void measure(int port, size_t answer_bytes, int connections, int depth, int milliseconds) {
    if (depth > DEPTH_MAX) depth = DEPTH_MAX;
    struct flow *flows = calloc(connections, sizeof *flows);
    static char requests[REQUEST_BYTES * DEPTH_MAX], in[1 << 20];
    static uint32_t latency_us[LATENCY_MAX_US];
    int ep = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        struct sockaddr_in address = loopback(port);
        int fd = flows[i].fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (void *)&address, sizeof address)) fail("connect");
        tune(fd);
        watch(ep, EPOLL_CTL_ADD, fd, EPOLLIN, &flows[i]);
    }
    uint64_t start = now_ns(), now = start, end = start + milliseconds * 1000000ull, done = 0;
    for (int i = 0; i < connections; i++) {
        for (int d = 0; d < depth; d++) flows[i].started_ns[d] = start;
        if (send(flows[i].fd, requests, REQUEST_BYTES * depth, 0) != REQUEST_BYTES * depth) fail("send");
    }
    struct epoll_event ready[EVENTS];
    while ((now = now_ns()) < end) {
        int n = epoll_wait(ep, ready, EVENTS, wait_ms ? 100 : 0);
        for (int i = 0; i < n; i++) {
            struct flow *f = ready[i].data.ptr;
            ssize_t got = recv(f->fd, in, sizeof in, 0);
            if (got < 0 && errno == EAGAIN) continue;
            if (got <= 0) fail("server closed");
            f->answer_bytes += got;
            int answered = f->answer_bytes / answer_bytes;
            f->answer_bytes %= answer_bytes;
            now = now_ns();
            for (int j = 0; j < answered; j++) {
                uint64_t us = (now - f->started_ns[f->oldest]) / 1000;
                latency_us[us < LATENCY_MAX_US ? us : LATENCY_MAX_US - 1]++;
                f->started_ns[f->oldest] = now;
                f->oldest = (f->oldest + 1) % depth;
            }
            done += answered;
            for (size_t sent = 0, all = (size_t)REQUEST_BYTES * answered; sent < all;) {
                ssize_t part = send(f->fd, requests, all - sent, 0);
                if (part < 0 && errno != EAGAIN) fail("send");
                if (part > 0) sent += part;
            }
        }
    }
    uint64_t seen = 0;
    int p50 = -1, p99 = -1;
    for (int us = 0; us < LATENCY_MAX_US; us++) {
        seen += latency_us[us];
        if (p50 < 0 && seen * 2 >= done) p50 = us;
        if (p99 < 0 && seen * 100 >= done * 99) p99 = us;
    }
    printf("requests_per_second %.0f p50_us %d p99_us %d\n", done * 1e9 / (now - start), p50, p99);
}

int main(int argc, char **argv) {
    wait_ms = getenv("BUSY") ? 0 : -1;
    if (argc == 4 && *argv[1] == 's') serve(atoi(argv[2]), atoi(argv[3]));
    if (argc == 7 && *argv[1] == 'c') { measure(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6])); return 0; }
    fprintf(stderr, "usage: echo s PORT ANSWER_BYTES | echo c PORT ANSWER_BYTES CONNECTIONS DEPTH MILLISECONDS\n");
    return 2;
}
