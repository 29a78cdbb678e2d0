#pragma once

#include <string>
#include <vector>

#include "common/messages/watchdog/flight_record.hpp"

/// @file
/// Why nothing moves, told from the flight records of all ranks.

namespace rankwise {

/// Compares the records of all ranks of a job in which somebody has waited for too long.
/// @param records    by rank.
/// @param timeout_s  how long is too long.
/// @return  a line that names the cause as far as it can be told, a line about the time, a line or more for each rank.
std::string diagnose(const std::vector<FlightRecord>& records, double timeout_s);

}  // namespace rankwise
