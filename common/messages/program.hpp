#pragma once

#include <functional>

#include "common/program/options.hpp"
#include "common/program/session.hpp"

/// @file
/// The frame of every program: read the options, refuse what cannot be, then run.

namespace rankwise {

/// Runs a program on all ranks and gives main its exit status.
///
/// 1. Each rank reads its options and calls @p check, which looks for what cannot be done and throws UserError. It sends
///    no messages, so it may refuse on some ranks only (a file that one machine lacks). Before that rank 0 looks at the
///    files that the options name (check_files()) and locks those that will be written, until the program ends.
/// 2. The ranks agree. If any refused, rank 0 prints what the lowest of them has to say, once, and all ranks return
///    exit_user_error. `--help` is settled here too: printed once, all return exit_success.
/// 3. Each rank calls @p run. What it returns is this rank's status; the launcher fails if any rank's does.
/// 4. When all ranks have come back, a message between them that was not received makes it exit_failure, and is named.
///
/// A watchdog guards a job of several ranks from its start to step 4. It waits for Watchdog::default_timeout_s, or for as
/// long as an option `--timeout` says.
///
/// An exception out of @p run, or any other than UserError out of @p check, ends the whole job (abort_job()) with one
/// message: rank, file, line and the innermost span.
int run_program(int argc, char** argv, OptionTable& options, const std::function<void(const Session&)>& check,
                const std::function<int(Session&)>& run);

}  // namespace rankwise
