#include "gpt2/gradient_sum.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "common/base/tree_sum.hpp"

namespace rankwise {

namespace {

/// Sets the gradients of frozen tensors to zero.
Tensor without_frozen(Stream& stream, const Tensor& gradients, const GradientLayout& layout)
{
  for (const Range& elements : layout.frozen) stream.zero(gradients.slice(elements));
  return gradients;
}

class RunningSum final : public GradientSum {
 public:
  RunningSum(const Kernels& kernels, Stream& stream, const DeviceMemory& memory, const GradientLayout& layout)
      : kernels_(kernels),
        stream_(stream),
        layout_(layout),
        sum_(memory, Category::gradients, layout.type, {layout.elements}, "gradients")
  {
  }

  GradientTensors begin(Range) override
  {
    const bool first = std::exchange(is_empty_, false);
    if (first) clear_all_but_products();
    return {sum_.tensor(), {}, first};
  }
  std::vector<PartialSum> finish(Range elements) override { return {{{sum_so_far().slice(elements)}}}; }
  void end(Range) override {}
  void add(Range, const std::vector<Tensor>& gradients) override
  {
    if (std::exchange(is_empty_, false))
      stream_.copy(sum_.tensor(), gradients[0]);
    else
      kernels_->add(sum_.tensor(), gradients[0]);
  }
  std::vector<PartialSum> sums() override { return {{{sum_so_far()}}}; }
  Tensor total() override { return without_frozen(stream_, sum_so_far(), layout_); }
  void clear() override { is_empty_ = true; }

 private:
  Tensor sum_so_far()
  {
    if (std::exchange(is_empty_, false)) stream_.zero(sum_.tensor());
    return sum_.tensor();
  }

  void clear_all_but_products() const
  {
    std::int64_t at = 0;
    for (const Range& product : layout_.products) {
      stream_.zero(sum_.tensor().slice({at, product.first - at}));
      at = product.end();
    }
    stream_.zero(sum_.tensor().slice({at, layout_.elements - at}));
  }

  const Kernels& kernels_;
  Stream& stream_;
  GradientLayout layout_;
  Buffer sum_;
  bool is_empty_ = true;  // nothing has been added yet, and the content of the buffer is undefined
};

/// The gradients of an aligned run of sequences, one subtree of the sum.
struct Subtree {
  Range sequences;
  Buffer flat, tied;
};

/// The sibling of @p run in the tree, with which it is added.
Range sibling(Range run)
{
  const bool left = run.first / run.count % 2 == 0;
  return {left ? run.end() : run.first - run.count, run.count};
}

/// The parent of @p run in the tree, of which it is one half.
Range parent(Range run)
{
  return {std::min(run.first, sibling(run).first), 2 * run.count};
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
          "a micro-batch is not an aligned run of a power of two of sequences");
    check(!open_, "a micro-batch begins before the last one has ended");
    if (spare_.empty()) spare_.push_back(make_subtree(Category::exact_sums));
    growing_ = std::move(spare_.back());
    spare_.pop_back();
    growing_.sequences = sequences;
    open_ = true;
    unfinished_ = layout_.elements;
    stream_.zero(growing_.flat.tensor());
    stream_.zero(growing_.tied.tensor());
    return {growing_.flat.tensor(), growing_.tied.tensor()};
  }

  std::vector<PartialSum> finish(Range elements) override
  {
    check(open_ && elements.end() == unfinished_, "elements of a micro-batch are finished out of order");
    const Range run = add_neighbours(elements);
    std::vector<const Subtree*> subtrees{&growing_};
    for (const Subtree& waiting : waiting_)
      if (intersect(waiting.sequences, run).empty()) subtrees.push_back(&waiting);
    return partial_sums(subtrees, elements);
  }

  void end(Range sequences) override
  {
    check(open_ && growing_.sequences == sequences, "a micro-batch ends that has not begun");
    if (unfinished_ > 0) add_neighbours({0, unfinished_});
    open_ = false;
    Subtree node = std::move(growing_);
    while (Subtree* waiting = find(sibling(node.sequences))) {
      node.sequences = parent(node.sequences);
      spare_.push_back(std::move(*waiting));
      waiting_.erase(waiting_.begin() + (waiting - waiting_.data()));
    }
    waiting_.push_back(std::move(node));
  }

  void add(Range sequences, const std::vector<Tensor>& gradients) override
  {
    const GradientTensors so_far = begin(sequences);
    kernels_->add(so_far.flat, gradients[0]);
    if (gradients.size() > 1) kernels_->add(so_far.tied, gradients[1]);
    end(sequences);
  }

  std::vector<PartialSum> sums() override
  {
    std::vector<const Subtree*> subtrees;
    for (const Subtree& waiting : waiting_) subtrees.push_back(&waiting);
    return partial_sums(subtrees, {0, layout_.elements});
  }

  Tensor total() override
  {
    sort_waiting();
    if (!std::exchange(summed_over_ranks_, false)) add_up_waiting();
    check(!waiting_.empty(), "a sum of no sequences");
    const Subtree& sum = waiting_.front();
    if (!layout_.tied.empty()) kernels_->add(sum.flat.tensor().slice(layout_.tied), sum.tied.tensor());
    return without_frozen(stream_, sum.flat.tensor(), layout_);
  }

  void clear() override
  {
    for (Subtree& subtree : waiting_) spare_.push_back(std::move(subtree));
    waiting_.clear();
    summed_over_ranks_ = false;
  }

 private:
  Subtree make_subtree(Category category) const
  {
    Subtree subtree{{}, Buffer(memory_, category, layout_.type, {layout_.elements}, "gradients"), {}};
    if (!layout_.tied.empty())
      subtree.tied = Buffer(memory_, Category::exact_sums, layout_.type, {layout_.tied.count}, "tied gradients");
    return subtree;
  }

  /// Adds the neighbours that wait for the open micro-batch to elements of it.
  /// @return  the run of sequences whose subtree it is then.
  Range add_neighbours(Range elements)
  {
    const bool last = elements.end() == layout_.elements;
    Range run = growing_.sequences;
    for (; const Subtree* waiting = find(sibling(run)); run = parent(run)) {
      kernels_->add(growing_.flat.tensor().slice(elements), waiting->flat.tensor().slice(elements));
      if (last && !layout_.tied.empty()) kernels_->add(growing_.tied.tensor(), waiting->tied.tensor());
    }
    unfinished_ = elements.first;
    return run;
  }

  /// This rank's terms of the sum over ranks; the first of all subtrees will hold that sum.
  std::vector<PartialSum> partial_sums(std::vector<const Subtree*> subtrees, Range elements)
  {
    check(!subtrees.empty(), "a sum of no sequences");
    std::ranges::sort(subtrees, {}, [](const Subtree* s) { return s->sequences.first; });
    summed_over_ranks_ = true;
    std::vector<PartialSum> sums(1);
    for (const Subtree* s : subtrees) sums[0].subtrees.push_back(s->flat.tensor().slice(elements));
    if (elements.end() < layout_.elements || layout_.tied.empty()) return sums;
    sums.emplace_back();
    for (const Subtree* s : subtrees) sums[1].subtrees.push_back(s->tied.tensor());
    return sums;
  }

  void sort_waiting()
  {
    std::ranges::sort(waiting_, {}, [](const Subtree& s) { return s.sequences.first; });
  }

  /// Adds the waiting subtrees, of all sequences, to the first one.
  void add_up_waiting()
  {
    std::vector<Range> runs;
    for (const Subtree& s : waiting_) {
      const std::int64_t expected = waiting_.size() == 1 ? s.sequences.first : runs.empty() ? 0 : runs.back().end();
      check(s.sequences.first == expected, "a micro-batch is missing in a sum");
      runs.push_back(s.sequences);
    }
    tree_over_runs(runs, [&](std::size_t i, std::size_t j) {
      kernels_->add(waiting_[i].flat.tensor(), waiting_[j].flat.tensor());
      if (!layout_.tied.empty()) kernels_->add(waiting_[i].tied.tensor(), waiting_[j].tied.tensor());
    });
  }

  /// The waiting subtree of these sequences, if there is one.
  Subtree* find(Range sequences)
  {
    const auto found =
        std::find_if(waiting_.begin(), waiting_.end(), [&](const Subtree& s) { return s.sequences == sequences; });
    return found == waiting_.end() ? nullptr : &*found;
  }

  const Kernels& kernels_;
  Stream& stream_;
  DeviceMemory memory_;
  GradientLayout layout_;
  bool open_ = false;
  bool summed_over_ranks_ = false;  // since clear(), sums or parts of them were given to be summed over ranks
  std::int64_t unfinished_ = 0;     // elements of the open micro-batch that are not finished yet
  Subtree growing_;
  std::vector<Subtree> waiting_, spare_;
};

}  // namespace

GradientLayout gradient_layout(const ParameterTable& table, DType type)
{
  check(table.units().first == 0, "a table without the embedding has no tied gradient");
  GradientLayout layout{.elements = table.elements(),
                        .type = type,
                        .tied = table.entries().front().elements,
                        .frozen = frozen_ranges(table, {0, table.elements()})};
  for (const Parameter& p : table.entries())
    if (p.one_product) layout.products.push_back(p.elements);
  return layout;
}

ModelTensors model_tensors(const ParameterTable& table, const GradientTensors& gradients)
{
  ModelTensors model = model_tensors(table, gradients.flat, gradients.tied);
  for (BranchTensors& branch : model.branches) branch.unwritten = gradients.unwritten;
  model.head.unwritten = gradients.unwritten;
  return model;
}

std::unique_ptr<GradientSum> make_running_sum(const Kernels& kernels, Stream& stream, const DeviceMemory& memory,
                                              const GradientLayout& layout)
{
  return std::make_unique<RunningSum>(kernels, stream, memory, layout);
}

std::unique_ptr<GradientSum> make_tree_sum(const Kernels& kernels, Stream& stream, const DeviceMemory& memory,
                                           const GradientLayout& layout)
{
  return std::make_unique<TreeSum>(kernels, stream, memory, layout);
}

std::int64_t tree_buffers(Range micro_batches)
{
  std::int64_t most = 1;
  for (std::int64_t m = micro_batches.first; m < micro_batches.end(); ++m)
    most = std::max(most, std::ssize(aligned_runs({micro_batches.first, m - micro_batches.first})) + 1);
  return most;
}

MicroBatchOrder micro_batch_order(bool tree, std::int64_t pass, std::int64_t micro_batches)
{
  MicroBatchOrder order;
  if (!tree) {
    if (pass > 0) order.added = {0};
    return order;
  }
  // Level l waits if bit l of m is set. The last micro-batch adds all that wait, the others those of neighbours.
  const auto m = static_cast<std::uint64_t>(pass);
  const auto levels = static_cast<std::size_t>(micro_batch_levels(tree, micro_batches));
  const bool last = pass + 1 == micro_batches;
  order.level = last ? levels - 1 : static_cast<std::size_t>(std::countr_one(m));
  for (std::size_t l = 0; l < levels; ++l)
    if (last ? (m >> l & 1) != 0 : l < order.level) order.added.push_back(l);
  return order;
}

std::int64_t micro_batch_levels(bool tree, std::int64_t micro_batches)
{
  return tree ? std::bit_width(static_cast<std::uint64_t>(micro_batches)) : 1;
}

}  // namespace rankwise
