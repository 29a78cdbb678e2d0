#pragma once

#include <chrono>
#include <thread>

/// @file
/// Waiting for another thread, in tests.

namespace rankwise {

/// Waits until @p holds() does. Gives up after 20,000 naps of a millisecond, so that a wrong program fails instead of hanging;
/// they are counted, not timed, because a thread that does not get its turn takes none.
/// @return  whether it holds.
template <class Holds>
bool eventually(const Holds& holds)
{
  for (int naps = 0; naps < 20'000 && !holds(); ++naps) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return holds();
}

}  // namespace rankwise
