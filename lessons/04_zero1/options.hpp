#pragma once

#include "lessons/03_ddp/options.hpp"

/// @file
/// The options of lesson 04.

namespace rankwise {

/// Options of ZeRO-1: those of buckets.
struct Zero1Options : BucketOptions {};

}  // namespace rankwise
