#pragma once

#include <string>

/// @file
/// Crash reports: a rank that is killed by a signal reports its rank, what it was doing, and where.

namespace rankwise {

/// Installs signal handlers. A process killed by SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT prints on stderr
///
///     rank 2 of 4: 03_ddp: SIGSEGV (segmentation fault), while averaging gradients (lessons/03_ddp/03_ddp.cpp:31)
///
/// followed by the program's own functions on the stack, innermost first, as addr2line shows them: with file and
/// line if the build has debug information (the presets debug, sanitize and threads). Then the signal takes its
/// default action, core dump included. A stack overflow of the first thread is reported as well.
///
/// MPI's handlers are replaced; in a build with a sanitizer the sanitizer's handlers are kept.
/// @param who             beginning of the message, as "rank 2 of 4: 03_ddp".
/// @param first_to_speak  returns true if no other rank has reported a failure yet; called in the signal handler.
///                        If it returns false, the process prints nothing and gives the first rank five seconds to
///                        report.
void report_crashes(const std::string& who, bool (*first_to_speak)());

/// Gives the calling thread, which is the process's first one, a stack of its own for signal handlers with
/// SA_ONSTACK, if it has none.
void provide_signal_stack();

}  // namespace rankwise
