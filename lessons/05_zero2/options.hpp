#pragma once

#include "lessons/parallel/zero/ddp_options.hpp"

/// @file
/// The options of lesson 05.

namespace rankwise {

/// Options of ZeRO-2: the size of buckets.
struct Zero2Options : BucketOptions {
  static constexpr Stage stage = Stage::zero2;  ///< this lesson
};

}  // namespace rankwise
