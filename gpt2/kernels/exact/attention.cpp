#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/base/portable_math.hpp"
#include "gpt2/kernels/exact/attention_blocks.hpp"

namespace rankwise {

namespace {

/// Leaves whose scores are computed together.
struct Chunk {
  Range leaves, keys;
};

/// Divides the leaves of @p order into chunks of block_keys or more keys.
std::vector<Chunk> chunks_of(const SumOrder& order)
{
  std::vector<Chunk> chunks;
  for (std::int64_t leaf = 0; leaf < order.leaves(); ++leaf) {
    const Range keys = order.run(leaf, 0);
    if (chunks.empty() || chunks.back().keys.count + keys.count > block_keys)
      chunks.push_back({{leaf, 0}, {keys.first, 0}});
    ++chunks.back().leaves.count;
    chunks.back().keys.count += keys.count;
  }
  return chunks;
}

/// The soft-max of the queries of a head, a block at a time; the scratch of one thread. Query w of a block is lane w.
template <class T>
class BlockedSoftmax {
 public:
  explicit BlockedSoftmax(const ReferenceLayer<float>& layer)
      : layer_(layer),
        D_(layer.shape.D),
        row_(padded(D_)),
        chunks_(chunks_of(layer.key_order)),
        most_keys_(std::max_element(chunks_.begin(), chunks_.end(),
                                    [](const Chunk& a, const Chunk& b) { return a.keys.count < b.keys.count; })
                       ->keys.count),
        keys_(layer.runs.keys.count * D_ + 4),
        values_(layer.runs.keys.count * row_),
        queries_(D_ * block_queries),
        scores_((most_keys_ + 4) * block_queries),
        factors_(layer.dropped ? most_keys_ * block_queries : 0),
        outputs_(places * block_queries * row_)
  {
  }

  /// Calls done(q, soft-max) for every query of a head.
  template <class Done>
  void compute(const HeadView<T>& head, std::int64_t b, std::int64_t h, Done&& done)
  {
    for (const Chunk& chunk : chunks_)
      pack_columns(keys_.data() + chunk.keys.first * D_, chunk.keys.count, chunk.keys.count, D_,
                   [&](std::int64_t k) { return head.key(chunk.keys.first + k); });
    pack_rows(values_.data(), row_, layer_.runs.keys.count, D_, [&](std::int64_t k) { return head.value(k); });
    for (std::int64_t q = 0; q < layer_.runs.queries.count; q += block_queries) {
      const Range block{q, std::min(block_queries, layer_.runs.queries.count - q)};
      compute_block(head, b, h, block);
      end_sums(outputs_.data(), block.count * row_);
      for (std::int64_t w = 0; w < block.count; ++w)
        done(q + w, SoftmaxView<float>{maxima_[0].at[w], sums_[0].at[w], outputs_.data() + w * row_});
    }
  }

 private:
  using Queries = Lanes<float, block_queries>;  // a number for each query of a block
  static constexpr std::int64_t places = tree_places(leaves_of_a_sequence);

  /// The leaves of the keys merge in the tree of tree_sum(); the result is in place 0.
  void compute_block(const HeadView<T>& head, std::int64_t b, std::int64_t h, Range block)
  {
    pack_columns(queries_.data(), block_queries, block.count, D_,
                 [&](std::int64_t w) { return head.query(block.first + w); });
    for (std::int64_t w = 0; w < block_queries; ++w)
      visible_[w] = static_cast<std::int32_t>(w < block.count ? layer_.seen(b, block.first + w).keys : 0);
    const Range seen{0, visible_[block.count - 1]};  // the last query sees most
    const Chunk* chunk = chunks_.data();
    tree_in_places(
        layer_.key_order.leaves(),
        [&](std::int64_t place, std::int64_t leaf) {
          if (leaf == chunk->leaves.end()) ++chunk;
          if (leaf == chunk->leaves.first) score(*chunk, intersect(chunk->keys, seen).count);
          leaf_softmax(place, *chunk, intersect(layer_.key_order.run(leaf, 0), seen), b, h, block);
        },
        [&](std::int64_t place) { merge_next(place); });
  }

  /// scores[k, q] = q.k of the first @p keys keys of a chunk.
  void score(const Chunk& chunk, std::int64_t keys)
  {
    const LeafPiece all{D_};
    sum_tiles({keys_.data() + chunk.keys.first * D_, chunk.keys.count, 1, queries_.data(), block_queries}, keys,
              block_queries, {&all, 1}, {scores_.data(), block_queries, 0});
  }

  /// The soft-max over the keys of one leaf, as leaf_softmax() of the reference; -infinity hides a key from a query.
  void leaf_softmax(std::int64_t place, const Chunk& chunk, Range keys, std::int64_t b, std::int64_t h, Range block)
  {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    float* const output = outputs_.data() + place * block_queries * row_;
    maxima_[place].at.fill(-infinity);
    sums_[place].at.fill(0);
    if (keys.count == 0) {
      if (place == 0) std::fill_n(output, block_queries * row_, 0.0F);  // else it is not read
      return;
    }
    // Local variables show a compiler that the scores are in other memory.
    Queries maximum = maxima_[place], shift, sum;
    float* const scores = scores_.data() + (keys.first - chunk.keys.first) * block_queries;
    for (std::int64_t k = 0; k < keys.count; ++k) {
      float* const s = scores + k * block_queries;
      for (std::int64_t w = 0; w < block_queries; ++w) s[w] *= layer_.scale;
      if (keys.first + k >= visible_[0])  // hidden from some
        for (std::int64_t w = 0; w < block_queries; ++w) s[w] = keys.first + k < visible_[w] ? s[w] : -infinity;
      for (std::int64_t w = 0; w < block_queries; ++w) maximum.at[w] = maximum.at[w] < s[w] ? s[w] : maximum.at[w];
    }
    for (std::int64_t w = 0; w < block_queries; ++w) shift.at[w] = maximum.at[w] == -infinity ? 0 : maximum.at[w];
    for (std::int64_t k = 0; k < keys.count; ++k) {
      float* const s = scores + k * block_queries;
      for (std::int64_t w = 0; w < block_queries; ++w) s[w] = portable::exp(s[w] - shift.at[w]);
      for (std::int64_t w = 0; w < block_queries; ++w) sum.at[w] += s[w];
    }
    maxima_[place] = maximum;
    sums_[place] = sum;
    if (layer_.dropped) {
      fill_block_factors(factors_.data(), layer_, b, h, block, keys);
      for (std::int64_t i = 0; i < keys.count * block_queries; ++i) scores[i] *= factors_.data()[i];
    }
    const LeafPiece all{keys.count};
    sum_tiles({scores, block_queries, 1, values_.data() + keys.first * row_, row_}, block_queries, row_, {&all, 1},
              {output, row_, 0});
  }

  /// Merges a place with the next one, as merge() does for each query.
  void merge_next(std::int64_t place)
  {
    Queries &maximum = maxima_[place], &sum = sums_[place], smaller;
    const Queries &next_maximum = maxima_[place + 1], &next_sum = sums_[place + 1];
    // A query that sees the next place sees this one, too, and a later query sees as much as an earlier one or more.
    const auto seen = std::find_if(next_sum.at.begin(), next_sum.at.end(), [](float s) { return s != 0; });
    if (seen == next_sum.at.end()) return;
    // The larger maximum has the factor exp(0) = 1.
    for (std::int64_t w = 0; w < block_queries; ++w)
      smaller.at[w] =
          portable::exp(std::min(maximum.at[w], next_maximum.at[w]) - std::max(maximum.at[w], next_maximum.at[w]));
    for (std::int64_t w = seen - next_sum.at.begin(); w < block_queries; ++w) {
      if (next_sum.at[w] == 0) continue;  // there is no such query
      const bool grows = maximum.at[w] < next_maximum.at[w];
      const float a = grows ? smaller.at[w] : 1, b = grows ? 1 : smaller.at[w];
      if (grows) maximum.at[w] = next_maximum.at[w];
      sum.at[w] = sum.at[w] * a + next_sum.at[w] * b;
      float* const into = outputs_.data() + (place * block_queries + w) * row_;
      const float* const from = into + block_queries * row_;
      for (std::int64_t d = 0; d < row_; ++d) into[d] = into[d] * a + from[d] * b;
    }
  }

  const ReferenceLayer<float>& layer_;
  std::int64_t D_, row_;
  std::vector<Chunk> chunks_;
  std::int64_t most_keys_;
  AlignedFloats keys_;                   // (chunk, D, keys of the chunk)
  AlignedFloats values_;                 // (keys, row)
  AlignedFloats queries_;                // (D, queries of a block)
  AlignedFloats scores_;                 // (keys of a chunk, queries of a block); then their exponentials
  AlignedFloats factors_;                // the same, for dropout
  AlignedFloats outputs_;                // (places, queries of a block, row)
  std::int32_t visible_[block_queries];  // number of keys that each query sees
  Queries maxima_[places], sums_[places];
};

/// Calls done(b, h, q, soft-max) for every query of every head.
template <class T, class Done>
void for_each_softmax(const ReferenceLayer<float>& layer, const HeadSource<T>& source, Done&& done)
{
  const std::int64_t heads = layer.shape.heads.count;
#pragma omp parallel
  {
    BlockedSoftmax<T> softmax(layer);
#pragma omp for
    for (std::int64_t bh = 0; bh < layer.shape.B * heads; ++bh) {
      const std::int64_t b = bh / heads, h = bh % heads;
      softmax.compute(source.head(layer, b, h), b, h,
                      [&](std::int64_t q, const SoftmaxView<float>& found) { done(b, h, q, found); });
    }
  }
}

}  // namespace

void ExactKernels::attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv,
                                     const AttentionShape& shape, const Dropout& dropout) const
{
  with_real_type(y.type(), [&]<class T>(T) {
    if constexpr (std::is_same_v<T, double>) {  // for tests
      ReferenceKernels::attention_forward(y, log_sum_exp, qkv, shape, dropout);
    } else {
      const ReferenceLayer<float> layer(shape, all_tokens(shape), dropout);
      for_each_softmax(layer, HeadSource<T>{qkv.data<T>()}, into_layer<T>(layer, y, log_sum_exp));
    }
  });
}

void ExactKernels::attention_partial(const SoftmaxPartial& partial, const Tensor& qkv, const Tensor& kv,
                                     const AttentionShape& shape, const AttentionRuns& runs,
                                     const Dropout& dropout) const
{
  with_real_type(qkv.type(), [&]<class T>(T) {
    if constexpr (std::is_same_v<T, double>) {
      ReferenceKernels::attention_partial(partial, qkv, kv, shape, runs, dropout);
    } else {
      const ReferenceLayer<float> layer(shape, runs, dropout);
      for_each_softmax(layer, HeadSource<T>{qkv.data<T>(), kv.data<T>()}, into_partial(layer, partial));
    }
  });
}

}  // namespace rankwise
