// A library to be loaded before others (LD_PRELOAD): in the folder that FAILING_FOLDER names the disk is full from the k-th
// call on that changes a file, or for that one call only. FAILING_CALL=k counts from 1; FAILING_ONCE=1 means one call only.
// What a process has called is written to the file that FAILING_COUNT names, at its end, as the number of calls.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/types.h>
#include <unistd.h>

static int calls = 0;

// Whether this call, on a file of that path, is one that fails.
static int fails_at(const char* path)
{
  const char* folder = getenv("FAILING_FOLDER");
  if (folder == NULL || strncmp(path, folder, strlen(folder)) != 0) return 0;
  const char *wanted = getenv("FAILING_CALL"), *once = getenv("FAILING_ONCE");
  const int k = wanted == NULL ? INT_MAX : atoi(wanted), call = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
  if (once != NULL ? call != k : call < k) return 0;
  errno = ENOSPC;
  return 1;
}

static int fails(int file)
{
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = '\0';
  return fails_at(path);
}

__attribute__((destructor)) static void write_count(void)
{
  const char* name = getenv("FAILING_COUNT");
  FILE* file = name == NULL || calls == 0 ? NULL : fopen(name, "w");  // MPI's helpers have called nothing
  if (file == NULL) return;
  fprintf(file, "%d\n", calls);
  fclose(file);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int file, const void* from, size_t count)
{
  return fails(file) ? -1 : REAL(write)(file, from, count);
}

ssize_t pwrite(int file, const void* from, size_t count, off_t offset)
{
  return fails(file) ? -1 : REAL(pwrite)(file, from, count, offset);
}

ssize_t pwrite64(int file, const void* from, size_t count, off64_t offset)
{
  return fails(file) ? -1 : REAL(pwrite64)(file, from, count, offset);
}

int ftruncate(int file, off_t length)
{
  return fails(file) ? -1 : REAL(ftruncate)(file, length);
}

int ftruncate64(int file, off64_t length)
{
  return fails(file) ? -1 : REAL(ftruncate64)(file, length);
}

int fsync(int file)
{
  return fails(file) ? -1 : REAL(fsync)(file);
}

int rename(const char* from, const char* to)
{
  return fails_at(from) ? -1 : REAL(rename)(from, to);
}

// As on file systems that find a full disk only when a file that was written is closed. The descriptor is closed all the same.
int close(int file)
{
  const int writes = (fcntl(file, F_GETFL) & O_ACCMODE) != O_RDONLY, full = writes && fails(file);
  const int status = REAL(close)(file);
  if (!full) return status;
  errno = ENOSPC;
  return -1;
}

// FAILING_LOCKS=1: a file system without locks.
int flock(int file, int operation)
{
  if (getenv("FAILING_LOCKS") == NULL) return REAL(flock)(file, operation);
  errno = ENOLCK;
  return -1;
}
