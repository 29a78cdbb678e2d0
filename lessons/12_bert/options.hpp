#pragma once

#include <cstdint>
#include <string>

#include "lessons/parallel/zero/ddp_options.hpp"
#include "lessons/parallel/zero/zero3_options.hpp"

/// @file
/// The options of lesson 12.

namespace rankwise {

/// Options of pre-training a BERT: how its model state is sharded.
struct BertOptions : Zero3Options {
  BertOptions()
  {
    architecture = Architecture::bert;
    mask = "full";
  }

  int zero = 3;           ///< `--zero`: 0 DDP (lesson 03), 1 ZeRO-1 (lesson 04), 3 ZeRO-3 (lesson 06)
  Bytes bucket{200'000};  ///< least size of a bucket of gradients, for --zero=0 and 1
};

/// N replicas, powers of two in exact arithmetic.
inline Division divide(const BertOptions& options, RankOf rank)
{
  return divide_batch(options, {.dp = rank.ranks}, rank.rank, options.cut_batch(rank.ranks));
}
/// Declares the options of lesson 06, --zero and --bucket.
void declare(OptionTable& table, BertOptions& options);
/// Refuses a layout that this lesson does not have, and options that a BERT or the chosen layout cannot use.
/// @throws UserError  for the first of them.
void check_lesson(const BertOptions& options, int N);

}  // namespace rankwise
