#pragma once

#include "lessons/03_ddp/options.hpp"

/// @file
/// The options of lesson 04.

namespace rankwise {

/// Options of ZeRO-1: those of all lessons, and --bucket.
struct Zero1Options : BucketOptions {
  static constexpr Stage stage = Stage::zero1;  ///< this lesson
};

}  // namespace rankwise
