// A library to be loaded before others (LD_PRELOAD): something goes wrong with the files in the folder that FAILING_FOLDER
// names, from the k-th call on that concerns them (FAILING_CALL=k, from 1), or at that one only (FAILING_ONCE=1). FAILING_HOW
// says what, and which calls count:
//
//   full       the disk is full (the default)                              calls that change a file
//   kill       the process is killed before the call                       these, reads, and names that come and go
//   flip       a bit of what is read is another one                        reads at a place (pread)
//   elsewhere  what is read lies in another place                          as above
//   cut        the file ends in the middle of what is read                 as above
//   error      nothing can be read                                         as above
//   lost       nothing is written, and nobody says so                      writes to a place (pwrite)
//
// FAILING_RANK=r: in the process of this rank only. FAILING_LOG=FILE: there each call that counts is a line: its name and its
// file. FAILING_LOCKS=1: a file system without locks.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

// What a call does.
enum { CHANGES = 1, READS_AT = 2, WRITES_AT = 4, ANYTHING = 8 };

static const struct fault {
  const char* name;
  int counts;  // calls that do one of these
} faults[] = {{"full", CHANGES},   {"kill", CHANGES | READS_AT | ANYTHING},
              {"flip", READS_AT},  {"elsewhere", READS_AT},
              {"cut", READS_AT},   {"error", READS_AT},
              {"lost", WRITES_AT}, {NULL, 0}};

static int calls = 0;

static const struct fault* fault(void)
{
  const char* name = getenv("FAILING_HOW");
  const struct fault* f = faults;
  while (name != NULL && f->name != NULL && strcmp(f->name, name) != 0) ++f;
  return f;
}

static int is(const char* name)
{
  return fault()->name != NULL && strcmp(fault()->name, name) == 0;
}

// Whether this process and this file are meant.
static int concerns(const char* path)
{
  const char *folder = getenv("FAILING_FOLDER"), *rank = getenv("FAILING_RANK"), *own = getenv("OMPI_COMM_WORLD_RANK");
  const size_t length = folder == NULL ? 0 : strlen(folder);
  if (length == 0 || strncmp(path, folder, length) != 0 || (path[length] != '/' && path[length] != '\0')) return 0;
  return rank == NULL || strcmp(rank, own == NULL ? "0" : own) == 0;
}

static void log_call(const char* name, const char* path)
{
  const char* log = getenv("FAILING_LOG");
  const int file = log == NULL ? -1 : REAL(open)(log, O_CREAT | O_APPEND | O_WRONLY, 0600);
  if (file < 0) return;
  dprintf(file, "%s %s\n", name, path);
  REAL(close)(file);
}

// Whether something goes wrong at this call, on a file of that path.
static int fails_at(const char* path, int does, const char* name)
{
  if ((does & fault()->counts) == 0 || !concerns(path)) return 0;
  const char *wanted = getenv("FAILING_CALL"), *once = getenv("FAILING_ONCE");
  const int k = wanted == NULL ? INT_MAX : atoi(wanted), call = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
  log_call(name, path);
  if (once != NULL ? call != k : call < k) return 0;
  if (is("kill")) raise(SIGKILL);
  errno = ENOSPC;
  return 1;
}

static int fails(int file, int does, const char* name)
{
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = '\0';
  return fails_at(path, does, name);
}

// ---- Calls that change a file ----------------------------------------------------------------------------------------

ssize_t write(int file, const void* from, size_t count)
{
  return fails(file, CHANGES, "write") ? -1 : REAL(write)(file, from, count);
}

static ssize_t write_at(int file, const void* from, size_t count, off_t offset)
{
  if (!fails(file, CHANGES | WRITES_AT, "pwrite")) return REAL(pwrite)(file, from, count, offset);
  return is("lost") ? (ssize_t)count : -1;
}

ssize_t pwrite(int file, const void* from, size_t count, off_t offset)
{
  return write_at(file, from, count, offset);
}

ssize_t pwrite64(int file, const void* from, size_t count, off64_t offset)
{
  return write_at(file, from, count, offset);
}

int ftruncate(int file, off_t length)
{
  return fails(file, CHANGES, "ftruncate") ? -1 : REAL(ftruncate)(file, length);
}

int ftruncate64(int file, off64_t length)
{
  return fails(file, CHANGES, "ftruncate") ? -1 : REAL(ftruncate64)(file, length);
}

int fsync(int file)
{
  return fails(file, CHANGES, "fsync") ? -1 : REAL(fsync)(file);
}

int rename(const char* from, const char* to)
{
  return fails_at(from, CHANGES, "rename") ? -1 : REAL(rename)(from, to);
}

// As on file systems that find a full disk only when a file that was written is closed. The descriptor is closed all the same.
int close(int file)
{
  const int writes = (fcntl(file, F_GETFL) & O_ACCMODE) != O_RDONLY, full = writes && fails(file, CHANGES, "close");
  const int status = REAL(close)(file);
  if (!full) return status;
  errno = ENOSPC;
  return -1;
}

// ---- Reads -----------------------------------------------------------------------------------------------------------

static ssize_t read_at(int file, void* to, size_t count, off_t offset)
{
  if (!fails(file, READS_AT, "pread")) return REAL(pread)(file, to, count, offset);
  errno = EIO;
  if (is("error")) return -1;
  if (is("cut") && REAL(ftruncate)(file, offset + (off_t)(count / 2)) != 0) return -1;
  if (is("elsewhere")) offset += offset >= (off_t)count ? -(off_t)count : (off_t)count;
  const ssize_t done = REAL(pread)(file, to, count, offset);
  const unsigned place = (unsigned)calls * 2654435769u >> 8;  // another one at each call
  if (is("flip") && done > 0) ((unsigned char*)to)[place % (size_t)done] ^= (unsigned char)(1u << place % 8);
  return done;
}

ssize_t pread(int file, void* to, size_t count, off_t offset)
{
  return read_at(file, to, count, offset);
}

ssize_t pread64(int file, void* to, size_t count, off64_t offset)
{
  return read_at(file, to, count, offset);
}

ssize_t read(int file, void* to, size_t count)
{
  fails(file, ANYTHING, "read");
  return REAL(read)(file, to, count);
}

// ---- Names that come and go -------------------------------------------------------------------------------------------

static mode_t count_opening(const char* path, int flags, va_list rest)
{
  if ((flags & O_CREAT) == 0 && (flags & O_TMPFILE) != O_TMPFILE) return 0;
  fails_at(path, ANYTHING, "open");
  return va_arg(rest, mode_t);
}

int open(const char* path, int flags, ...)
{
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = count_opening(path, flags, rest);
  va_end(rest);
  return REAL(open)(path, flags, mode);
}

int open64(const char* path, int flags, ...)
{
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = count_opening(path, flags, rest);
  va_end(rest);
  return REAL(open64)(path, flags, mode);
}

int remove(const char* path)
{
  fails_at(path, ANYTHING, "remove");
  return REAL(remove)(path);
}

// ---- Locks -----------------------------------------------------------------------------------------------------------

int flock(int file, int operation)
{
  if (getenv("FAILING_LOCKS") == NULL) return REAL(flock)(file, operation);
  errno = ENOLCK;
  return -1;
}
