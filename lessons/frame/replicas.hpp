#pragma once

#include <cstdint>
#include <string>

#include "common/collectives/collectives.hpp"
#include "common/program/options.hpp"
#include "data/loader.hpp"
#include "gpt2/model.hpp"

/// @file
/// What replicas of a model add up and compare.

namespace rankwise {

/// Whole numbers of 64 bits in which a sum of losses and its number of tokens travel.
inline constexpr std::int64_t loss_numbers = 5;

/// Replaces a sum of losses and its number of tokens on each rank by the sums over the ranks: one message of 40 bytes.
/// Together, because a small message takes the latency of its steps, whatever its size.
void all_reduce_sum(LossSum& loss, Group& group);

/// Refuses a global batch that the ranks cannot share out equally.
/// @throws UserError  with what is possible.
void check_share(std::int64_t global_batch, int ranks);

/// Refuses ranks that were given different options or data, before they train together. All ranks make this call.
/// @throws UserError  on all ranks: what differs, and who was told what.
void check_alike(const OptionTable& options, const Tokens& tokens);

/// Ends the run unless the parameters of all ranks of the job are the same, by a fast hash.
/// @param stream      of their device: made them.
/// @param parameters  of this rank.
/// @param when        as "after step 10", for the message.
/// @failure  Error on all ranks: which of them differ from rank 0.
void check_replicas(Stream& stream, const Tensor& parameters, const std::string& when);

/// A fast hash of the parameters of this rank, as 16 hexadecimal digits.
/// @param stream  of their device: made them.
std::string replica_hash(Stream& stream, const Tensor& parameters);

/// Whether all ranks have the same text, as long on all of them. They make this call together.
bool same_on_all_ranks(const std::string& text, Group& group);
/// The same of all ranks of the job.
bool same_on_all_ranks(const std::string& text);

}  // namespace rankwise
