/* A system clock that tests can shift; see shifted_clock.py. Other clocks are not changed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *shift; /* seconds, in a file that the test changes */
static int (*read_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_shift(void) {
    const char *name = getenv("SCRLM_TEST_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *memory = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) shift = memory;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!read_clock) *(void **)&read_clock = dlsym(RTLD_NEXT, "clock_gettime");
    int error = read_clock(clock, now);
    if (!error && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *shift;
    return error;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
