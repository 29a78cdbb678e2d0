#include "lessons/parallel/context/key_ring.hpp"

#include <fmt/format.h>

namespace rankwise {

KeyRing::KeyRing(Run& run, const TokenRuns& runs, Group& group)
    : run_(run), runs_(runs), rank_(group.rank()), queue_(group, run.time)
{
  for (Buffer& buffer : blocks_)
    buffer = Buffer(run.memory, Category::communication, run.shape.type, {elements(run.config, run.shape)},
                    "keys and values");
}

KeyBlock KeyRing::begin(std::span<TokenRun> own, std::size_t i)
{
  const KeyBlock first = block(0);
  const std::int64_t R = run_.shape.rows(), C = head_channels_here(run_.config, run_.shape);
  for (std::size_t k = 0; k < own.size(); ++k) {
    // A row of `inner` is (q, k, v): what comes after q is sent.
    const Tensor inner = own[k].kept.branches[i].inner;
    run_.kernels->copy(Matrix::of(first.kv[k], R), {inner.slice({C, inner.elements() - C}), R, 2 * C, 3 * C});
  }
  return first;
}

Pending KeyRing::pass_on(const KeyBlock& block)
{
  if (block.hop + 1 == ranks()) return {};
  const auto buffer = [&](int hop) { return blocks_[static_cast<std::size_t>(hop % 2)].tensor(); };
  return pass(buffer(block.hop), buffer(block.hop + 1), "keys and values");
}

KeyBlock KeyRing::next(const KeyBlock& before) const
{
  return block(before.hop + 1);
}

Pending KeyRing::pass(const Tensor& sent, const Tensor& received, const std::string& what)
{
  return queue_.start(what, [sent, received](Group& group) {
    const CollectiveScope scope(group, {"ring pass", "ring", sent.type(), sent.elements()});
    const int c = group.ranks(), r = group.rank();
    group.transport().exchange(sent, (r + 1) % c, received, (r + c - 1) % c);
  });
}

std::int64_t KeyRing::elements(const ModelConfig& config, const ActivationShape& shape)
{
  return 2 * shape.rows() * 2 * head_channels_here(config, shape);
}

KeyBlock KeyRing::block(int hop) const
{
  KeyBlock block{.hop = hop, .owner = (rank_ - hop + ranks()) % ranks()};
  block.runs = runs_.of(block.owner);
  const Tensor& all = blocks_[static_cast<std::size_t>(hop % 2)].tensor();
  const std::int64_t half = all.elements() / 2;
  for (std::size_t k = 0; k < block.kv.size(); ++k)
    block.kv[k] = all.slice({static_cast<std::int64_t>(k) * half, half});
  return block;
}

}  // namespace rankwise
