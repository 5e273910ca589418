/* Preloaded into PostgreSQL: adds the nanoseconds that a file holds to every clock of the day. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define BILLION 1000000000LL

static const int64_t none = 0;
static const volatile int64_t *offset = &none;
static int (*true_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    true_clock = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("CHAOS_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *seen = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (seen != MAP_FAILED)
        offset = seen;
}

int clock_gettime(clockid_t which, struct timespec *moment)
{
    if (!true_clock)  /* another library's beginning came before ours */
        true_clock = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    int failed = true_clock(which, moment);
    if (failed || (which != CLOCK_REALTIME && which != CLOCK_REALTIME_COARSE) || *offset == 0)
        return failed;
    int64_t sum = moment->tv_sec * BILLION + moment->tv_nsec + *offset;
    moment->tv_sec = sum / BILLION;
    moment->tv_nsec = sum % BILLION;
    return 0;
}

int gettimeofday(struct timeval *restrict moment, void *restrict zone)
{
    struct timespec precise;
    (void) zone;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    moment->tv_sec = precise.tv_sec;
    moment->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *moment)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (moment)
        *moment = precise.tv_sec;
    return precise.tv_sec;
}
