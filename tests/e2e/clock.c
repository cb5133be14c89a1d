/* Preloaded into a process, this moves its wall clock by the number of seconds that the file in LMJ_CLOCK holds (an int64), as a clock that jumps.
 * The monotonic clock stays. Waits until a time of the wall clock are given to the kernel in its own time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifdef __x86_64__
#define CONDITION_VERSION "GLIBC_2.3.2"
#else
#define CONDITION_VERSION "GLIBC_2.17"
#endif

static const int64_t still = 0;
static const volatile int64_t *offset = &still;

__attribute__((constructor)) static void attach(void) {
  const char *path = getenv("LMJ_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  if (found == MAP_FAILED) {
    fprintf(stderr, "clock.c: LMJ_CLOCK=%s cannot be mapped\n", path ? path : "(unset)");
    _exit(97);
  }
  close(file);
  offset = found;
}

int clock_gettime(clockid_t id, struct timespec *now) {
  int failed = (int)syscall(SYS_clock_gettime, id, now);
  if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset;
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *where) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (where) *where = exact.tv_sec;
  return exact.tv_sec;
}

/* A time of the monotonic clock, which counts from boot, is no larger than this. */
static struct timespec real(const struct timespec *until) {
  struct timespec moved = *until;
  if (moved.tv_sec > 1000000000) moved.tv_sec -= *offset;
  return moved;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
  static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  if (!next) next = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", CONDITION_VERSION);
  struct timespec moved = real(until);
  return next(condition, mutex, &moved);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
  static int (*next)(sem_t *, const struct timespec *);
  if (!next) next = dlsym(RTLD_NEXT, "sem_timedwait");
  struct timespec moved = real(until);
  return next(semaphore, &moved);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
  static int (*next)(pthread_mutex_t *, const struct timespec *);
  if (!next) next = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
  struct timespec moved = real(until);
  return next(mutex, &moved);
}
