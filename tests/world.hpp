#pragma once

#include "common/program/session.hpp"

/// @file
/// What the main function of the tests lends to them.

namespace rankwise {

/// The session in which the tests of this program run.
const Session& world();

}  // namespace rankwise
