#pragma once

#include <cstdint>

#include "lessons/frame/options.hpp"

/// @file
/// The options of data parallelism.

namespace rankwise {

/// `--strategy`: when gradients are summed over the ranks.
enum class Strategy : std::uint8_t {
  per_tensor,  ///< after the backward pass, one tensor after the other
  flat,        ///< after the backward pass, all at once
  bucketed,    ///< after the backward pass, in buckets
  overlapped,  ///< in buckets, each as soon as the backward pass is done with it
};

/// Options of lessons that send gradients in buckets.
struct BucketOptions : LessonOptions {
  Bytes bucket{200'000};          ///< gradients that are sent together, at least
  std::int64_t check_every = 10;  ///< steps between comparisons of the replicas; 0: only at the end
};

/// Declares them.
void declare(OptionTable& table, BucketOptions& options);
/// Refuses a size that no bucket can have, and a number of steps that is none.
void check_lesson(const BucketOptions& options, int N);

/// Options of lesson 03.
struct DdpOptions : BucketOptions {
  Strategy strategy = Strategy::overlapped;  ///< when gradients are summed
};

/// Declares them.
void declare(OptionTable& table, DdpOptions& options);

}  // namespace rankwise
