#pragma once

#include "lessons/frame/options.hpp"
#include "lessons/parallel/zero/buckets.hpp"
#include "lessons/parallel/zero/zero_stages.hpp"

/// @file
/// The options of data parallelism.

namespace rankwise {

/// Options of lessons that send gradients in buckets.
struct BucketOptions : LessonOptions {
  Bytes bucket{200'000};  ///< least size of a bucket of gradients
};

/// Declares the options of all lessons and --bucket.
void declare(OptionTable& table, BucketOptions& options);
/// Refuses an invalid size of buckets.
void check_lesson(const BucketOptions& options, int N);

/// Options of lesson 03.
struct DdpOptions : BucketOptions {
  static constexpr Stage stage = Stage::ddp;  ///< this lesson
  Strategy strategy = Strategy::overlapped;   ///< when gradients are summed over the ranks
};

/// Declares the options of BucketOptions and --strategy.
void declare(OptionTable& table, DdpOptions& options);
/// Options of lesson 03, and whether they do something.
std::vector<Effect> effects_of(const DdpOptions& options);

}  // namespace rankwise
