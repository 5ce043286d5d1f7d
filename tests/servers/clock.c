/* A wall clock that a test can set: preloaded into a server (LD_PRELOAD), it adds to what the kernel
 * says the microseconds that stand in the file $HOLDFAST_CLOCK, which both have mapped. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;

__attribute__((constructor)) static void map_the_file(void) {
    const char *path = getenv("HOLDFAST_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *at = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED) shift = at;
}

int clock_gettime(clockid_t id, struct timespec *out) {
    int failed = (int)syscall(SYS_clock_gettime, id, out);
    if (failed || !shift || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) return failed;
    int64_t at = out->tv_sec * INT64_C(1000000000) + out->tv_nsec + *shift * 1000;
    out->tv_sec = at / INT64_C(1000000000);
    out->tv_nsec = at % INT64_C(1000000000);
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
