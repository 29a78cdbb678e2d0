#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/program/options.hpp"
#include "common/program/session.hpp"

/// @file
/// The main function of every program: parse options, reject invalid ones, run.

namespace rankwise {

/// Runs a program on all ranks and returns the exit status for main.
///
/// 1. Each rank parses its options. Rank 0 checks the files that they name (check_files()) and locks those that
///    will be written, until the program ends.
/// 2. Each rank calls @p check, which throws UserError for a run that is impossible. It sends no messages, so it
///    may throw on some ranks only, for instance if one machine lacks a file.
/// 3. The ranks agree on the outcome. If any threw, rank 0 prints the message of the lowest such rank, once, and
///    all return exit_user_error. For `--help` rank 0 prints the help, and all return exit_success.
/// 4. Each rank calls @p run, which returns this rank's status. If any status is not 0, the launcher fails.
/// 5. After all ranks have returned, messages between them that were never received are reported, and the status
///    becomes exit_failure.
///
/// A watchdog guards a job of several ranks from its start to step 5. Its timeout is Watchdog::default_timeout_s,
/// or the value of option `--timeout`.
///
/// An exception from @p run, or any but UserError from @p check, ends the whole job (abort_job()) with one message:
/// rank, file, line and the innermost span.
int run_program(int argc, char** argv, OptionTable& options, const std::function<void(const Session&)>& check,
                const std::function<int(Session&)>& run);

/// run_program() for a command line with files besides options: words without --. Rank 0 does the work; other ranks
/// have nothing to do.
/// @param check  called on rank 0 with the files; as above.
/// @param run    called on rank 0; returns the exit status.
int run_file_program(int argc, char** argv, OptionTable& options,
                     const std::function<void(const std::vector<std::string>& files)>& check,
                     const std::function<int(const std::vector<std::string>& files)>& run);

}  // namespace rankwise
