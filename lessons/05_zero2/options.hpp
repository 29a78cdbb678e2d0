#pragma once

#include "lessons/parallel/zero/ddp_options.hpp"

/// @file
/// The options of lesson 05.

namespace rankwise {

/// Options of ZeRO-2: the size of buckets.
struct Zero2Options : BucketOptions {
  static constexpr Stage stage = Stage::zero2;  ///< this lesson
};

/// Data parallelism. All ranks make the same number of micro-batches.
inline Division divide(const Zero2Options& options, RankOf rank)
{
  return divide_with_padding(options, rank);
}

}  // namespace rankwise
