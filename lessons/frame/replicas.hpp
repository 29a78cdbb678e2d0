#pragma once

#include <cstdint>
#include <string>

#include "common/collectives/collectives.hpp"
#include "common/program/options.hpp"
#include "data/loader.hpp"
#include "gpt2/model.hpp"
#include "lessons/frame/options.hpp"

/// @file
/// Sums over the replicas of a model, and comparisons of replicas.

namespace rankwise {

/// Number of 64-bit integers in the message of a sum of losses and its number of tokens.
inline constexpr std::int64_t loss_numbers = 5;
/// The sum of squares alone.
inline constexpr std::int64_t square_numbers = 4;

/// Replaces a sum of losses and its number of tokens on each rank by the sums over the ranks: one message of 40
/// bytes. One message instead of two, because the time of a small message is its latency, whatever its size.
void all_reduce_sum(LossSum& loss, Group& group);

/// Refuses a global batch that cannot be divided equally among the ranks.
/// @throws UserError  with the possible sizes.
void check_share(std::int64_t global_batch, int ranks);
/// check_share() for the replicas of a layout. In exact arithmetic with Layout::uneven they may have different
/// numbers of sequences, at least one each; shared memory then takes powers of two only.
void check_share(const LessonOptions& options, const Layout& layout);

/// Refuses ranks that were started with different options, or that read files of different content. All ranks make this call
/// before training, while --checkpoint is only read.
/// @throws UserError  on all ranks: the files, or the first option, that differ, with those of each rank.
void check_alike(const OptionTable& options);

/// Ends the run unless all ranks of the job have the same parameters, compared by a fast hash.
/// @param stream      stream that computed the parameters.
/// @param parameters  parameters of this rank.
/// @param when        as "after step 10", for the message.
/// @failure  Error on all ranks, with the ranks that differ from rank 0.
void check_replicas(Stream& stream, const Tensor& parameters, const std::string& when);

/// A fast hash of the parameters of this rank, as 16 hexadecimal digits.
/// @param stream  stream that computed the parameters.
std::string replica_hash(Stream& stream, const Tensor& parameters);

/// True if all ranks of a group have the same text. It has the same length on all; all of them make this call.
bool same_on_all_ranks(const std::string& text, Group& group);
/// True if all ranks of the job have the same text.
bool same_on_all_ranks(const std::string& text);

}  // namespace rankwise
