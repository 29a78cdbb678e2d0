#include "lessons/parallel/context/key_gradients.hpp"

#include "common/base/tree_sum.hpp"
#include "common/collectives/collectives.hpp"

namespace rankwise {

namespace {

/// The two halves of a tensor, one for each run.
std::array<Tensor, TokenRuns::of_a_rank> halves(const Tensor& both)
{
  const std::int64_t half = both.elements() / 2;
  return {both.slice({0, half}), both.slice({half, half})};
}

/// A buffer of @p blocks times R 2 C numbers.
Buffer make(const Run& run, Category category, std::int64_t blocks)
{
  return {run.memory,
          category,
          accumulator_of(run.shape.type),
          {blocks * run.shape.rows() * 2 * head_channels_here(run.config, run.shape)},
          "gradients of keys and values"};
}

}  // namespace

// ---- Fast arithmetic ------------------------------------------------------------------------------------------------

TravellingGradients::TravellingGradients(const Run& run, KeyRing& ring)
    : run_(run),
      ring_(ring),
      pair_(make(run, Category::workspace, 1)),
      here_(make(run, Category::workspace, runs_of_a_rank))
{
  for (Buffer& buffer : travelling_) buffer = make(run, Category::communication, runs_of_a_rank);
}

void TravellingGradients::begin()
{
  run_.stream->zero(here_.tensor());
}

void TravellingGradients::added(const KeyBlock&, std::size_t, std::size_t key)
{
  run_.kernels->add(halves(here_.tensor())[key], pair_.tensor());
}

void TravellingGradients::finished(const KeyBlock& block)
{
  const auto buffer = [&](int hop) { return travelling_[static_cast<std::size_t>(hop % 2)].tensor(); };
  if (block.hop == 0) {
    run_.stream->copy(buffer(0), here_.tensor());
  } else {
    passing_.wait();
    run_.kernels->add(buffer(block.hop), here_.tensor());
  }
  run_.stream->zero(here_.tensor());
  if (ring_.ranks() > 1) passing_ = ring_.pass(buffer(block.hop), buffer(block.hop + 1), "gradients of keys");
}

std::array<Tensor, TokenRuns::of_a_rank> TravellingGradients::total()
{
  passing_.wait();
  const int hops = ring_.ranks() > 1 ? ring_.ranks() : 0;
  return halves(travelling_[static_cast<std::size_t>(hops % 2)].tensor());
}

std::int64_t TravellingGradients::workspace_bytes(const ModelConfig& config, const ActivationShape& shape)
{
  return bytes_of(accumulator_of(shape.type)) * (1 + runs_of_a_rank) * shape.rows() * 2 *
         head_channels_here(config, shape);
}

// ---- Exact arithmetic -----------------------------------------------------------------------------------------------

ReturnedGradients::ReturnedGradients(const Run& run, const TokenRuns& runs, Group& group)
    : run_(run),
      runs_(runs),
      group_(group),
      sent_(make(run, Category::communication, runs_of_a_rank * runs.count())),
      received_(make(run, Category::communication, runs_of_a_rank * runs.count()))
{
}

void ReturnedGradients::begin()
{
  run_.stream->zero(sent_.tensor());  // queries that see no key of a run give it nothing
}

namespace {

/// The gradient that run @p query of one rank gives run @p key of another, in a tensor of the gradients between this rank
/// and all ranks.
Tensor pair_of(const Tensor& all, int ranks, int rank, std::size_t key, std::size_t query)
{
  const std::int64_t pair = all.elements() / (ranks * runs_of_a_rank * runs_of_a_rank);
  const std::int64_t number =
      (rank * runs_of_a_rank + static_cast<std::int64_t>(key)) * runs_of_a_rank + static_cast<std::int64_t>(query);
  return all.slice({number * pair, pair});
}

}  // namespace

Tensor ReturnedGradients::next(const KeyBlock& block, std::size_t query, std::size_t key)
{
  return pair_of(sent_.tensor(), runs_.ranks, block.owner, key, query);
}

std::array<Tensor, TokenRuns::of_a_rank> ReturnedGradients::total()
{
  all_to_all(sent_.tensor(), received_.tensor(), group_);
  std::array<Tensor, TokenRuns::of_a_rank> sums;
  for (std::size_t key = 0; key < sums.size(); ++key) {
    std::vector<Tensor> of_queries(static_cast<std::size_t>(runs_.count()));  // in the order of the sequence
    for (int rank = 0; rank < runs_.ranks; ++rank)
      for (std::size_t query = 0; query < sums.size(); ++query)
        of_queries[static_cast<std::size_t>(runs_.of(rank)[query])] =
            pair_of(received_.tensor(), runs_.ranks, rank, key, query);
    tree_over(runs_.count(),
              [&](std::size_t i, std::size_t j) { run_.kernels->add(of_queries[i], of_queries[j]); });
    sums[key] = of_queries.front();
  }
  return sums;
}

CollectiveShape ReturnedGradients::exchange(const ModelConfig& config, const ActivationShape& shape,
                                            const TokenRuns& runs, Algorithm algorithm)
{
  return {"all-to-all", algorithm, accumulator_of(shape.type),
          runs_of_a_rank * runs.count() * shape.rows() * 2 * head_channels_here(config, shape)};
}

}  // namespace rankwise
