// A library to be loaded before others (LD_PRELOAD): each rank is as on a machine whose clock is wrong. Rank r's clocks are
// r * SHIFTED_S seconds ahead (the time of day) and r * SHIFTED_PPM millionths too fast (all).

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec*);
static long shift_s, rate_ppm;
static struct timespec loaded;  // the moment on the steady clock

static long number(const char* name)
{
  const char* text = getenv(name);
  return text == NULL ? 0 : atol(text);
}

__attribute__((constructor)) static void load(void)
{
  real = (__typeof__(real))dlsym(RTLD_NEXT, "clock_gettime");
  real(CLOCK_MONOTONIC, &loaded);
  const long rank = number(getenv("PMI_RANK") == NULL ? "OMPI_COMM_WORLD_RANK" : "PMI_RANK");
  shift_s = rank * number("SHIFTED_S");
  rate_ppm = rank * number("SHIFTED_PPM");
}

int clock_gettime(clockid_t clock, struct timespec* time)
{
  if (real == NULL) load();
  const int status = real(clock, time);
  if (status != 0 || (clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC)) return status;
  struct timespec now;
  real(CLOCK_MONOTONIC, &now);
  const long since_us = (now.tv_sec - loaded.tv_sec) * 1000000 + (now.tv_nsec - loaded.tv_nsec) / 1000;
  time->tv_nsec += since_us * rate_ppm / 1000;
  time->tv_sec += (clock == CLOCK_REALTIME ? shift_s : 0) + time->tv_nsec / 1000000000;
  time->tv_nsec %= 1000000000;
  return 0;
}
