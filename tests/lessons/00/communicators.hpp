#pragma once

#include <functional>
#include <string>

#include "common/messages/communicator.hpp"

/// @file
/// Communicators in which the functions of lesson 00 are tested.

namespace rankwise {

/// Calls @p test in the communicator of all ranks; in one where they are numbered backwards; and in that of the even or
/// the odd ranks, so that two groups are at work. Rank numbers of the job are wrong in all but the first.
/// @param test  gets a communicator, and what it is.
inline void in_communicators(const std::function<void(const Communicator&, const std::string&)>& test)
{
  const Communicator world = Communicator::world();
  test(world, "all ranks");
  test(world.split(0, -world.rank()), "all ranks, numbered backwards");
  test(world.split(world.rank() % 2, -world.rank()), "every other rank, numbered backwards");
}

}  // namespace rankwise
