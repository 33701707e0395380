/* The native form of load.py: the same loop, a few hundred nanoseconds a request.
 *
 *   load run IN_FLIGHT CONNECTIONS SECONDS LIMIT FILE HOST:PORT...
 *     Sends the frames of FILE over and over, IN_FLIGHT unanswered over all connections, for SECONDS or until
 *     LIMIT requests were sent (0: no limit), then waits for every answer and prints one line of JSON.
 *     Each of several addresses gets all frames, and an equal share of the connections and of LIMIT.
 *   load sink
 *     A server that answers every frame with the shortest frame and does nothing else: the generator's own limit.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 8 << 20, EVENTS = 64 };
static const char ANSWER[] = "{\"code\":0,\"flag\":1}";

struct link {
    int fd, window;
    size_t quota; /* what it may still send */
    size_t first, end, next; /* its share of the frames, and the one to send next */
    const char *unsent;
    size_t unsent_bytes;
    double *sent_at; /* ring of `window` times */
    int oldest, outstanding;
    char *in;
    size_t in_bytes;
};

static const char *frames;
static size_t *starts; /* of each frame, and the end of the last */
static double *latencies;
static size_t answered, room, refused;
static char first_refusal[200];

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static uint32_t word(const char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static size_t load_frames(const char *path) {
    int fd = open(path, O_RDONLY);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) < 0) die(path);
    char *data = malloc(status.st_size);
    for (size_t done = 0; done < (size_t)status.st_size;) {
        ssize_t got = read(fd, data + done, status.st_size - done);
        if (got <= 0) die("read");
        done += got;
    }
    close(fd);
    size_t count = 0;
    for (size_t at = 0; at < (size_t)status.st_size; at += 4 + word(data + at)) count++;
    starts = malloc((count + 1) * sizeof *starts);
    size_t at = 0;
    for (size_t i = 0; i <= count; i++) {
        starts[i] = at;
        if (i < count) at += 4 + word(data + at);
    }
    frames = data;
    return count;
}

static void push(struct link *link) {
    while (link->unsent_bytes) {
        ssize_t sent = send(link->fd, link->unsent, link->unsent_bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) return;
        if (sent < 0) die("send");
        link->unsent += sent;
        link->unsent_bytes -= sent;
    }
}

/* Up to `count` more; frames lie one behind the other, so whatever is submitted at once is one send. */
static size_t submit(struct link *link, size_t count, double time) {
    size_t submitted = 0, free_places = link->window - link->outstanding;
    if (count > free_places) count = free_places;
    if (count > link->quota) count = link->quota;
    while (count && !link->unsent_bytes) {
        size_t chosen = link->end - link->next < count ? link->end - link->next : count;
        link->unsent = frames + starts[link->next];
        link->unsent_bytes = starts[link->next + chosen] - starts[link->next];
        link->next += chosen;
        if (link->next == link->end) link->next = link->first;
        for (size_t i = 0; i < chosen; i++)
            link->sent_at[(link->oldest + link->outstanding++) % link->window] = time;
        push(link);
        submitted += chosen;
        count -= chosen;
    }
    link->quota -= submitted;
    return submitted;
}

static void note(double latency) {
    if (answered == room) latencies = realloc(latencies, (room = room ? 2 * room : 1 << 16) * sizeof *latencies);
    latencies[answered++] = latency;
}

static int is_success(const char *frame) {
    if (frame[4] == 0) return !memcmp(frame + 8, "{\"code\":0,", 10);
    return frame[8] == 0 && frame[9] == 0; /* a binary header begins with the code */
}

static size_t receive(struct link *link, size_t *bytes, double *time) {
    ssize_t got = recv(link->fd, link->in + link->in_bytes, BUFFER - link->in_bytes, 0);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) {
        fprintf(stderr, "the server closed the connection\n");
        exit(1);
    }
    *time = now();
    *bytes += got;
    link->in_bytes += got;
    size_t at = 0, count = 0;
    while (link->in_bytes - at >= 4) {
        size_t size = 4 + (size_t)word(link->in + at);
        if (size > link->in_bytes - at) break;
        if (!is_success(link->in + at) && !refused++)
            snprintf(first_refusal, sizeof first_refusal, "%.*s", (int)(size - 8), link->in + at + 8);
        note(*time - link->sent_at[link->oldest]);
        link->oldest = (link->oldest + 1) % link->window;
        link->outstanding--;
        at += size;
        count++;
    }
    memmove(link->in, link->in + at, link->in_bytes - at);
    link->in_bytes -= at;
    return count;
}

static int dial(const char *host_port) {
    const char *colon = strrchr(host_port, ':');
    char host[64];
    snprintf(host, sizeof host, "%.*s", (int)(colon - host_port), host_port);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(colon + 1))};
    inet_pton(AF_INET, host, &address.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(double p) {
    size_t at = answered * p / 100;
    return latencies[at < answered ? at : answered - 1] * 1000;
}

/* Of `total` things in `count` parts, as equal as they can be, the number before part i. */
static size_t edge(size_t total, size_t i, size_t count) {
    return (size_t)((unsigned __int128)total * i / count);
}

static void run(char **arguments, char **addresses, int brokers) {
    size_t in_flight = atoi(arguments[0]), connections = atoi(arguments[1]);
    double seconds = atof(arguments[2]);
    size_t limit = strtoull(arguments[3], NULL, 10), count = load_frames(arguments[4]);
    if (limit == 0) limit = SIZE_MAX;
    struct link links[connections];
    int poller = epoll_create1(0);
    for (size_t i = 0; i < connections; i++) {
        struct link *link = &links[i];
        size_t share = i / brokers, shares = connections / brokers;
        *link = (struct link){.fd = dial(addresses[i % brokers])};
        link->window = edge(in_flight, i + 1, connections) - edge(in_flight, i, connections);
        if (link->window == 0) link->window = 1;
        link->quota = edge(limit, i + 1, connections) - edge(limit, i, connections);
        link->first = link->next = edge(count, share, shares);
        link->end = edge(count, share + 1, shares);
        link->sent_at = malloc(link->window * sizeof(double));
        link->in = malloc(BUFFER);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
        epoll_ctl(poller, EPOLL_CTL_ADD, link->fd, &event);
    }
    size_t submitted = 0, bytes = 0;
    double began = now(), last = began;
    for (size_t i = 0; i < connections; i++) submitted += submit(&links[i], in_flight - submitted, began);
    while (answered < submitted) {
        struct epoll_event events[EVENTS];
        int ready = epoll_wait(poller, events, EVENTS, 10000);
        if (ready == 0) {
            fprintf(stderr, "no answer for 10 s, %zu outstanding\n", submitted - answered);
            exit(1);
        }
        for (int i = 0; i < ready; i++) {
            struct link *link = events[i].data.ptr;
            receive(link, &bytes, &last);
            push(link);
            if (in_flight < connections) link = &links[(link - links + 1) % connections]; /* the brokers take turns */
            if (last - began < seconds) submitted += submit(link, in_flight - (submitted - answered), last);
        }
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double cpu = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
    qsort(latencies, answered, sizeof *latencies, ascending);
    printf("{\"requests\": %zu, \"refused\": %zu, \"seconds\": %.6f, \"bytes_received\": %zu, \"cpu_seconds\": %.6f, ",
           answered, refused, last - began, bytes, cpu);
    printf("\"p50_ms\": %.6f, \"p99_ms\": %.6f, \"p999_ms\": %.6f}\n", percentile(50), percentile(99), percentile(99.9));
    if (refused) fprintf(stderr, "%s\n", first_refusal);
}

static void sink(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), poller = epoll_create1(0);
    if (bind(listener, (struct sockaddr *)&address, size) < 0 || listen(listener, 64) < 0) die("listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    enum { HEAD = sizeof ANSWER - 1 };
    char answer[8 + HEAD], *many = malloc(4096 * sizeof answer);
    uint32_t words[2] = {htonl(4 + HEAD), htonl(HEAD)};
    memcpy(answer, words, 8);
    memcpy(answer + 8, ANSWER, HEAD);
    for (int i = 0; i < 4096; i++) memcpy(many + i * sizeof answer, answer, sizeof answer);
    struct link *links[1024] = {0};
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        struct epoll_event events[EVENTS];
        int ready = epoll_wait(poller, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                int yes = 1, accepted = accept(listener, NULL, NULL);
                setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
                links[accepted] = calloc(1, sizeof(struct link));
                links[accepted]->in = malloc(BUFFER);
                event = (struct epoll_event){.events = EPOLLIN, .data.fd = accepted};
                epoll_ctl(poller, EPOLL_CTL_ADD, accepted, &event);
                continue;
            }
            struct link *link = links[fd];
            ssize_t got = recv(fd, link->in + link->in_bytes, BUFFER - link->in_bytes, 0);
            if (got <= 0) {
                free(link->in);
                free(link);
                close(fd);
                continue;
            }
            link->in_bytes += got;
            size_t at = 0, count = 0;
            while (link->in_bytes - at >= 4 && 4 + (size_t)word(link->in + at) <= link->in_bytes - at) {
                at += 4 + word(link->in + at);
                count++;
            }
            memmove(link->in, link->in + at, link->in_bytes - at);
            link->in_bytes -= at;
            if (count && send(fd, many, count * sizeof answer, MSG_NOSIGNAL) < 0) die("send");
        }
    }
}

int main(int count, char **arguments) {
    if (count >= 8 && !strcmp(arguments[1], "run")) run(arguments + 2, arguments + 7, count - 7);
    else if (count == 2 && !strcmp(arguments[1], "sink")) sink();
    else return fprintf(stderr, "usage: see the head of load.c\n"), 2;
    return 0;
}
