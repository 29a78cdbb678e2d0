#pragma once

#include <cstdint>
#include <string>

#include "common/messages/watchdog/watchdog.hpp"
#include "common/program/options.hpp"
#include "common/program/session.hpp"

/// @file
/// The options of lesson 00.

namespace rankwise {

/// Which parts are shown, and their sizes.
struct MpiOptions {
  MpiOptions();  ///< declares them in the table

  OptionTable table{"00_mpi", "MPI from nothing"};  ///< all options

  std::string show = "all";  ///< part to show, all, or hang
  std::int64_t count = 10;   ///< elements of the vector of broadcast and sum
  int root = 0;              ///< rank that broadcasts
  int repeats = 31;          ///< timed round trips per size
  double timeout_s =
      Watchdog::default_timeout_s;  ///< seconds without progress after which the watchdog ends the job
  std::string report;               ///< file of the report

  /// True if a part is to be shown.
  bool shows(const std::string& part) const { return show == part || (show == "all" && part != "hang"); }
};

/// Refuses invalid options before anything is sent.
/// @throws UserError  for the first of them.
void check_options(const MpiOptions& options, const Session& session);

}  // namespace rankwise
