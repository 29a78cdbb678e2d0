#pragma once

#include <string>

/// @file
/// A rank that a signal ends says so: which rank, what it was doing, and where.

namespace rankwise {

/// From now on a process that SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT ends says, on standard error,
///
///     rank 2 of 4: 03_ddp: SIGSEGV (segmentation fault), while averaging gradients (lessons/03_ddp/03_ddp.cpp:31)
///
/// and below it the program's own functions on the stack, the innermost first, as addr2line shows them: with file and line
/// where the build has debug information (the presets debug, sanitize and threads). Then the signal ends the process as
/// it would have done, core dump included. An overflow of the first thread's stack is reported as well.
///
/// Handlers that MPI has installed are replaced. A program that a sanitizer watches keeps the sanitizer's.
/// @param who             what the message begins with, as "rank 2 of 4: 03_ddp".
/// @param first_to_speak  whether nobody else has said anything yet; called in the signal handler. A process that is not
///                        the first is silent and leaves the first one five seconds.
void report_crashes(const std::string& who, bool (*first_to_speak)());

}  // namespace rankwise
