#pragma once

#include <string>
#include <vector>

#include "common/messages/watchdog/flight_record.hpp"

/// @file
/// The cause of a deadlock, derived from the flight records of all ranks.

namespace rankwise {

/// Compares the records of all ranks of a job in which some rank has waited longer than the timeout.
/// @param records    one for each rank, in order.
/// @param timeout_s  the timeout.
/// @return  a line that names the cause as far as it is known, a line about the time, then one or more lines for
///          each rank.
std::string diagnose(const std::vector<FlightRecord>& records, double timeout_s);

}  // namespace rankwise
