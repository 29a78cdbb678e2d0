#pragma once

#include "lessons/03_ddp/buckets.hpp"
#include "lessons/frame/options.hpp"

/// @file
/// The options of data parallelism.

namespace rankwise {

/// Options of lessons that send gradients in buckets.
struct BucketOptions : LessonOptions {
  Bytes bucket{200'000};  ///< gradients that are sent together, at least
};

/// Declares them.
void declare(OptionTable& table, BucketOptions& options);
/// Refuses a size that no bucket can have.
void check_lesson(const BucketOptions& options, int N);

/// Options of lesson 03.
struct DdpOptions : BucketOptions {
  Strategy strategy = Strategy::overlapped;  ///< when gradients are summed
};

/// Declares them.
void declare(OptionTable& table, DdpOptions& options);

}  // namespace rankwise
