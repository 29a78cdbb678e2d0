#pragma once

#include <cstdint>
#include <string>

#include "lessons/frame/costs.hpp"
#include "lessons/frame/options.hpp"

/// @file
/// The ZeRO stages and the memory that each of them needs.

namespace rankwise {

/// The part of the model state that is sharded; each stage is a lesson.
enum class Stage : std::uint8_t {
  ddp,    ///< nothing: lesson 03
  zero1,  ///< moments and master weights: lesson 04
  zero2,  ///< gradients too: lesson 05
  zero3,  ///< parameters too: lesson 06
};

/// Data parallelism where gradients are summed over the ranks after each micro-batch, so that all make as many of them as
/// rank 0: its division, with padding in the place of a sequence less.
Division divide_with_padding(const LessonOptions& options, RankOf rank);

/// Options with which the run would fit in memory, as a paragraph: another micro-batch (suggest_options() of all
/// lessons), and the first later stage that fits. The bytes of another stage are an upper bound: they exceed the exact
/// number by a few elements per unit, because shards are rounded up, and by the buffers of exact sums; ZeRO-3 gathers
/// blocks, one ahead.
/// @param stage     stage of the run.
/// @param bucket    least number of bytes of a bucket of gradients.
/// @param planned   bytes of rank 0 of N in this stage.
/// @param capacity  bytes available.
/// @source  Rajbhandari et al. 2020 (ZeRO), figure 1.
std::string suggest_stage(Stage stage, const LessonOptions& options, std::int64_t bucket,
                          const CategoryBytes& planned, int N, std::int64_t capacity);

/// The same for the options of a lesson that is a stage, and the costs() of that lesson.
template <class Options>
std::string suggest_options(const Options& options, int N, std::int64_t bytes) requires requires
{
  Options::stage;
}
{
  std::int64_t bucket = 0;
  if constexpr (requires { options.bucket; }) bucket = options.bucket.value;
  return suggest_stage(Options::stage, options, bucket, in_tier(Tier::device, costs(options, RankOf{0, N}).most), N,
                       bytes);
}

}  // namespace rankwise
