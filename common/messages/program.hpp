#pragma once

#include <functional>

#include "common/program/options.hpp"
#include "common/program/session.hpp"

/// @file
/// The main function of every program: parse options, reject invalid ones, run.

namespace rankwise {

/// Runs a program on all ranks and returns the exit status for main.
///
/// 1. Each rank parses its options and calls @p check, which throws UserError for a run that is impossible. It
/// sends
///    no messages, so it may throw on some ranks only (a file that one machine lacks). Before that, rank 0 checks
///    the files that the options name (check_files()) and locks those that will be written, until the program ends.
/// 2. The ranks agree on the outcome. If any threw, rank 0 prints the message of the lowest such rank, once, and
/// all
///    ranks return exit_user_error. `--help` is handled here too: printed once, and all ranks return exit_success.
/// 3. Each rank calls @p run, which returns this rank's status; the launcher fails if the status of any rank is not
/// 0. 4. After all ranks have returned, a message between them that was never received is reported, and the status
///    becomes exit_failure.
///
/// A watchdog guards a job of several ranks from its start to step 4. Its timeout is Watchdog::default_timeout_s,
/// or the value of option `--timeout`.
///
/// An exception from @p run, or any but UserError from @p check, ends the whole job (abort_job()) with one message:
/// rank, file, line and the innermost span.
int run_program(int argc, char** argv, OptionTable& options, const std::function<void(const Session&)>& check,
                const std::function<int(Session&)>& run);

}  // namespace rankwise
