#pragma once

#include "lessons/parallel/zero/ddp_options.hpp"

/// @file
/// The options of ZeRO-1.

namespace rankwise {

/// Options of ZeRO-1: those of all lessons, and --bucket.
struct Zero1Options : BucketOptions {
  static constexpr Stage stage = Stage::zero1;  ///< this lesson
};

/// Declares the options of BucketOptions and --elastic.
inline void declare(OptionTable& table, Zero1Options& options)
{
  declare(table, static_cast<BucketOptions&>(options));
  declare_elastic(table, options, true);
}

}  // namespace rankwise
