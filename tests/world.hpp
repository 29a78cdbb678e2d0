#pragma once

#include "common/program/session.hpp"

/// @file
/// Objects that the main function of the tests provides.

namespace rankwise {

/// The session in which the tests of this program run.
const Session& world();

}  // namespace rankwise
