#include "gpt2/gradient_sum.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

namespace rankwise {

namespace {

class RunningSum final : public GradientSum {
 public:
  RunningSum(Stream& stream, const DeviceMemory& memory, const GradientLayout& layout)
      : stream_(stream), sum_(memory, Category::gradients, layout.type, {layout.elements}, "gradients")
  {
    clear();
  }

  GradientTensors begin(Range) override { return {sum_.tensor(), {}}; }
  void end(Range) override {}
  std::vector<Tensor> sums() override { return {sum_.tensor()}; }
  Tensor total() override { return sum_.tensor(); }
  void clear() override { stream_.zero(sum_.tensor()); }

 private:
  Stream& stream_;
  Buffer sum_;
};

/// The gradients of an aligned run of sequences: one subtree of the sum.
struct Subtree {
  Range sequences;
  Buffer flat, tied;
};

/// The run that is added to @p run next: its neighbour under the same parent.
Range sibling(Range run)
{
  const bool left = run.first / run.count % 2 == 0;
  return {left ? run.end() : run.first - run.count, run.count};
}

class TreeSum final : public GradientSum {
 public:
  TreeSum(const Kernels& kernels, Stream& stream, const DeviceMemory& memory, const GradientLayout& layout)
      : kernels_(kernels), stream_(stream), memory_(memory), layout_(layout)
  {
    spare_.push_back(make_subtree(Category::gradients));
  }

  GradientTensors begin(Range sequences) override
  {
    check(sequences.count > 0 && std::has_single_bit(static_cast<std::uint64_t>(sequences.count)) &&
              sequences.first % sequences.count == 0,
          "a micro-batch is not an aligned power-of-two run of sequences");
    check(!open_, "a micro-batch begins before the last one has ended");
    if (spare_.empty()) spare_.push_back(make_subtree(Category::exact_sums));
    growing_ = std::move(spare_.back());
    spare_.pop_back();
    growing_.sequences = sequences;
    open_ = true;
    stream_.zero(growing_.flat.tensor());
    stream_.zero(growing_.tied.tensor());
    return {growing_.flat.tensor(), growing_.tied.tensor()};
  }

  void end(Range sequences) override
  {
    check(open_ && growing_.sequences == sequences, "a micro-batch ends that has not begun");
    open_ = false;
    Subtree node = std::move(growing_);
    for (auto waiting = find(sibling(node.sequences)); waiting != waiting_.end();
         waiting = find(sibling(node.sequences))) {
      kernels_.add(node.flat.tensor(), waiting->flat.tensor());
      if (!layout_.tied.empty()) kernels_.add(node.tied.tensor(), waiting->tied.tensor());
      node.sequences = {std::min(node.sequences.first, waiting->sequences.first), 2 * node.sequences.count};
      spare_.push_back(std::move(*waiting));
      waiting_.erase(waiting);
    }
    waiting_.push_back(std::move(node));
  }

  std::vector<Tensor> sums() override
  {
    check(waiting_.size() == 1,
          fmt::format("{} runs of sequences wait for their neighbours; the sum is one run", waiting_.size()));
    std::vector<Tensor> sums{waiting_.front().flat.tensor()};
    if (!layout_.tied.empty()) sums.push_back(waiting_.front().tied.tensor());
    return sums;
  }

  Tensor total() override
  {
    const std::vector<Tensor> parts = sums();
    if (!layout_.tied.empty()) kernels_.add(parts[0].slice(layout_.tied), parts[1]);
    return parts[0];
  }

  void clear() override
  {
    for (Subtree& subtree : waiting_) spare_.push_back(std::move(subtree));
    waiting_.clear();
  }

 private:
  Subtree make_subtree(Category category) const
  {
    Subtree subtree{{}, Buffer(memory_, category, layout_.type, {layout_.elements}, "gradients"), {}};
    if (!layout_.tied.empty())
      subtree.tied = Buffer(memory_, Category::exact_sums, layout_.type, {layout_.tied.count}, "tied gradients");
    return subtree;
  }

  std::vector<Subtree>::iterator find(Range sequences)
  {
    return std::find_if(waiting_.begin(), waiting_.end(),
                        [&](const Subtree& s) { return s.sequences == sequences; });
  }

  const Kernels& kernels_;
  Stream& stream_;
  DeviceMemory memory_;
  GradientLayout layout_;
  bool open_ = false;
  Subtree growing_;
  std::vector<Subtree> waiting_, spare_;
};

}  // namespace

GradientLayout gradient_layout(const ParameterTable& table, DType type)
{
  check(table.units().first == 0, "a table without the embedding has no tied gradient");
  return {.elements = table.elements(), .type = type, .tied = table.entries().front().elements};
}

std::unique_ptr<GradientSum> make_running_sum(const Kernels&, Stream& stream, const DeviceMemory& memory,
                                              const GradientLayout& layout)
{
  return std::make_unique<RunningSum>(stream, memory, layout);
}

std::unique_ptr<GradientSum> make_tree_sum(const Kernels& kernels, Stream& stream, const DeviceMemory& memory,
                                           const GradientLayout& layout)
{
  return std::make_unique<TreeSum>(kernels, stream, memory, layout);
}

}  // namespace rankwise
