#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/base/portable_math.hpp"
#include "gpt2/kernels/exact/attention_blocks.hpp"

namespace rankwise {

namespace {

/// Queries whose contributions to a key are added together.
constexpr std::int64_t segment_queries = 256;
static_assert(segment_queries < rows_apart);

/// The terms of a segment of tokens, which follow each other.
Range tokens_of(const Segment& segment)
{
  return {segment.terms.empty() ? 0 : segment.terms.front().first, segment.count};
}

/// Outputs of the forward pass of one head, and the gradient of the first.
template <class T>
struct HeadOutputs {
  const T* dy;               ///< gradient of the output of query 0
  const T* y;                ///< output of query 0
  std::int64_t stride;       ///< from one query to the next
  const float* log_sum_exp;  ///< (queries)
};

/// The gradients of a head, in blocks of queries and segments of keys; the scratch of one thread. Query w of a block is
/// lane w.
///
///     forward    weight[q, k] = exp(scale q.k - log_sum_exp[q]),  y[q] = sum over k of factor[q, k] weight[q, k] v[k]
///     backward   dscore[q, k] = weight[q, k] (factor[q, k] dy[q].v[k] - dy[q].y[q])
///                dq[q] = sum over k of scale dscore[q, k] k[k],  dk[k] = sum over q of scale dscore[q, k] q[q],
///                dv[k] = sum over q of factor[q, k] weight[q, k] dy[q]
template <class T>
class BlockedGradient {
 public:
  explicit BlockedGradient(const ReferenceLayer<float>& layer)
      : layer_(layer),
        D_(layer.shape.D),
        row_(padded(D_)),
        key_segments_(segments_of(layer.key_order, block_keys)),
        query_segments_(segments_of(layer.query_order, segment_queries)),
        blocks_(blocks_of(query_segments_)),
        key_rows_(layer.runs.keys.count * row_),
        query_rows_(layer.runs.queries.count * row_),
        dy_rows_(layer.runs.queries.count * row_),
        keys_(layer.runs.keys.count * D_ + 4),
        values_(layer.runs.keys.count * D_ + 4),
        queries_(blocks_ * D_ * block_queries),
        dys_(blocks_ * D_ * block_queries),
        ys_(D_ * block_queries),
        statistics_(blocks_),
        products_((block_keys + 4) * 2 * block_queries),
        factors_(layer.dropped ? block_keys * block_queries : 0),
        dscores_((block_keys + 4) * rows_apart),
        weights_((block_keys + 4) * rows_apart),
        dquery_place_(blocks_ * block_queries * row_),
        dqueries_(places * dquery_place_),
        dkeys_(places * key_place()),
        dvalues_(places * key_place())
  {
  }

  /// Calls query_done(q, dq) for every query of a head and key_done(k, dk, dv) for every key.
  template <class QueryDone, class KeyDone>
  void compute(const HeadView<T>& head, const HeadOutputs<T>& outputs, std::int64_t b, std::int64_t h,
               QueryDone&& query_done, KeyDone&& key_done)
  {
    pack(head, outputs, b);
    for (const Segment& segment : key_segments_) {
      const Range keys = tokens_of(segment);
      std::int64_t first_block = 0;
      for (const Segment& queries : query_segments_) {
        add_segment(segment, queries, first_block, b, h);
        first_block += query_blocks(queries.count);
      }
      end_sums(dkeys_.data(), keys.count * row_);
      end_sums(dvalues_.data(), keys.count * row_);
      for (std::int64_t k = 0; k < keys.count; ++k)
        key_done(keys.first + k, dkeys_.data() + k * row_, dvalues_.data() + k * row_);
    }
    end_sums(dqueries_.data(), dquery_place_);
    const float* dq = dqueries_.data();
    for (const Segment& queries : query_segments_)
      for_each_block(queries, [&](Range block) {
        for (std::int64_t w = 0; w < block.count; ++w) query_done(block.first + w, dq + w * row_);
        dq += block_queries * row_;
      });
  }

 private:
  using Queries = Lanes<float, block_queries>;  // a number for each query of a block
  static constexpr std::int64_t places = tree_places(leaves_of_a_sequence);

  /// What is known of the queries of a block before its keys are.
  struct Statistics {
    Queries log_sum_exp;                  // of the forward pass
    Queries dy_y;                         // dy . y
    std::int32_t visible[block_queries];  // number of keys that it sees; 0 where there is no query
  };

  static std::int64_t blocks_of(const std::vector<Segment>& segments)
  {
    std::int64_t blocks = 0;
    for (const Segment& segment : segments) blocks += query_blocks(segment.count);
    return blocks;
  }
  std::int64_t key_place() const { return (block_keys + 4) * row_; }

  /// Copies the factors of all products, and computes what each query has once.
  void pack(const HeadView<T>& head, const HeadOutputs<T>& outputs, std::int64_t b)
  {
    const auto query = [&](std::int64_t q) { return head.query(q); };
    const auto key = [&](std::int64_t k) { return head.key(k); };
    const auto value = [&](std::int64_t k) { return head.value(k); };
    const auto dy = [&](std::int64_t q) { return outputs.dy + q * outputs.stride; };
    const auto y = [&](std::int64_t q) { return outputs.y + q * outputs.stride; };
    pack_rows(key_rows_.data(), row_, layer_.runs.keys.count, D_, key);
    pack_rows(query_rows_.data(), row_, layer_.runs.queries.count, D_, query);
    pack_rows(dy_rows_.data(), row_, layer_.runs.queries.count, D_, dy);
    const auto pack_tokens = [&](float* to, std::int64_t width, Range tokens, const auto& row) {
      pack_columns(to, width, tokens.count, D_, [&](std::int64_t t) { return row(tokens.first + t); });
    };
    for (const Segment& segment : key_segments_) {
      const Range keys = tokens_of(segment);
      pack_tokens(keys_.data() + keys.first * D_, keys.count, keys, key);
      pack_tokens(values_.data() + keys.first * D_, keys.count, keys, value);
    }
    std::int64_t number = 0;
    for (const Segment& segment : query_segments_)
      for_each_block(segment, [&](Range block) {
        pack_tokens(queries_.data() + number * D_ * block_queries, block_queries, block, query);
        pack_tokens(dys_.data() + number * D_ * block_queries, block_queries, block, dy);
        pack_tokens(ys_.data(), block_queries, block, y);
        const float *const dys = dys_.data() + number * D_ * block_queries, *const ys = ys_.data();
        Statistics& statistics = statistics_[static_cast<std::size_t>(number++)];
        statistics = {};
        for (std::int64_t d = 0; d < D_; ++d)
          for (std::int64_t w = 0; w < block_queries; ++w)
            statistics.dy_y.at[w] =
                std::fma(dys[d * block_queries + w], ys[d * block_queries + w], statistics.dy_y.at[w]);
        end_sums(statistics.dy_y.at.data(), block_queries);
        for (std::int64_t w = 0; w < block.count; ++w) {
          statistics.log_sum_exp.at[w] = outputs.log_sum_exp[block.first + w];
          statistics.visible[w] = static_cast<std::int32_t>(layer_.seen(b, block.first + w).keys);
        }
        // A query that sees no key has the gradient 0.
        if (statistics.visible[block.count - 1] == 0)
          std::fill_n(dqueries_.data() + (number - 1) * block_queries * row_, block_queries * row_, 0.0F);
      });
  }

  /// Calls f(queries) for each block of a segment of queries.
  template <class F>
  static void for_each_block(const Segment& segment, F&& f)
  {
    const Range queries = tokens_of(segment);
    for (std::int64_t q = queries.first; q < queries.end(); q += block_queries)
      f(Range{q, std::min(block_queries, queries.end() - q)});
  }

  /// Adds what a segment of queries contributes to a segment of keys, and the other way round.
  void add_segment(const Segment& key_segment, const Segment& query_segment, std::int64_t number, std::int64_t b,
                   std::int64_t h)
  {
    const Range keys = tokens_of(key_segment), queries = tokens_of(query_segment);
    std::int64_t hidden = 0;  // queries before the first block that sees one of the keys
    for_each_block(query_segment, [&](Range block) {
      const std::int64_t seen = statistics_[static_cast<std::size_t>(number)].visible[block.count - 1];
      const std::int64_t column = block.first - queries.first;
      if (seen > keys.first) {
        differentiate_scores(keys, std::min(keys.count, seen - keys.first), number, block, column, b, h);
        add_to_queries(key_segment, seen, number, block.count, column);
      } else {
        hidden = column + block.count;
      }
      ++number;
    });

    std::vector<LeafPiece> pieces = query_segment.pieces;
    std::int64_t left_out = hidden;
    for (LeafPiece& piece : pieces) {
      const std::int64_t without = std::min(left_out, piece.terms);
      piece.terms -= without;
      left_out -= without;
    }
    const std::int64_t first_row = (queries.first + hidden) * row_;
    sum_tiles({dscores_.data() + hidden, 1, rows_apart, query_rows_.data() + first_row, row_}, keys.count, row_,
              pieces, {dkeys_.data(), row_, key_place()});
    sum_tiles({weights_.data() + hidden, 1, rows_apart, dy_rows_.data() + first_row, row_}, keys.count, row_,
              pieces, {dvalues_.data(), row_, key_place()});
  }

  /// scale dscore and factor weight of a block of queries and the first @p seen keys of a segment, of which it sees some; 0
  /// where a query does not see a key.
  void differentiate_scores(Range keys, std::int64_t seen, std::int64_t number, Range block, std::int64_t column,
                            std::int64_t b, std::int64_t h)
  {
    const Statistics of =
        statistics_[static_cast<std::size_t>(number)];  // a copy shows a compiler that nothing changes it
    const LeafPiece all{D_};
    float *const scores = products_.data(), *const dweights = scores + (block_keys + 4) * block_queries;
    sum_tiles({keys_.data() + keys.first * D_, keys.count, 1, queries_.data() + number * D_ * block_queries,
               block_queries},
              seen, block_queries, {&all, 1}, {scores, block_queries, 0});
    sum_tiles(
        {values_.data() + keys.first * D_, keys.count, 1, dys_.data() + number * D_ * block_queries, block_queries},
        seen, block_queries, {&all, 1}, {dweights, block_queries, 0});
    if (layer_.dropped) fill_block_factors(factors_.data(), layer_, b, h, block, {keys.first, seen});
    for (std::int64_t k = 0; k < seen; ++k) {
      float *const s = scores + k * block_queries, *const dweight = dweights + k * block_queries;
      float *const weight = weights_.data() + k * rows_apart + column, *const dscore = dscores_.data() +
                                                                                       k * rows_apart + column;
      const auto key = static_cast<std::int32_t>(keys.first + k);
      for (std::int64_t w = 0; w < block_queries; ++w) s[w] = layer_.scale * s[w] - of.log_sum_exp.at[w];
      if (key >= of.visible[0])  // hidden from some
        for (std::int64_t w = 0; w < block_queries; ++w)
          s[w] = key < of.visible[w] ? s[w] : -std::numeric_limits<float>::infinity();
      for (std::int64_t w = 0; w < block_queries; ++w) weight[w] = portable::exp(s[w]);
      if (layer_.dropped)
        for (std::int64_t w = 0; w < block_queries; ++w) dweight[w] *= factors_.data()[k * block_queries + w];
      for (std::int64_t w = 0; w < block_queries; ++w)
        dscore[w] = layer_.scale * (weight[w] * (dweight[w] - of.dy_y.at[w]));
      if (layer_.dropped)
        for (std::int64_t w = 0; w < block_queries; ++w) weight[w] *= factors_.data()[k * block_queries + w];
    }
    for (std::int64_t k = seen; k < keys.count; ++k) {
      std::fill_n(dscores_.data() + k * rows_apart + column, block_queries, 0.0F);
      std::fill_n(weights_.data() + k * rows_apart + column, block_queries, 0.0F);
    }
  }

  /// Adds the terms of a segment of keys to dq of a block of queries that see @p seen keys. The last of these completes the
  /// tree: the leaves that follow are 0.
  void add_to_queries(const Segment& key_segment, std::int64_t seen, std::int64_t number, std::int64_t queries,
                      std::int64_t column)
  {
    const Range keys = tokens_of(key_segment);
    std::vector<LeafPiece> pieces;
    std::int64_t left = std::min(keys.count, seen - keys.first);
    for (LeafPiece piece : key_segment.pieces) {
      if (left == 0) break;
      piece.terms = std::min(piece.terms, left);
      left -= piece.terms;
      pieces.push_back(piece);
    }
    if (seen <= keys.end()) pieces.back().merges = pieces.back().place;
    sum_tiles({dscores_.data() + column, rows_apart, 1, key_rows_.data() + keys.first * row_, row_}, queries, row_,
              pieces, {dqueries_.data() + number * block_queries * row_, row_, dquery_place_});
  }

  const ReferenceLayer<float>& layer_;
  std::int64_t D_, row_;
  std::vector<Segment> key_segments_, query_segments_;
  std::int64_t blocks_;                            // of queries
  AlignedFloats key_rows_, query_rows_, dy_rows_;  // (tokens, row)
  AlignedFloats keys_, values_;                    // (segment, D, keys of the segment)
  AlignedFloats queries_, dys_;                    // (blocks, D, queries of a block)
  AlignedFloats ys_;                               // (D, queries of a block)
  std::vector<Statistics> statistics_;             // (blocks)
  AlignedFloats products_;                         // q.k and dy.v: (2, keys of a segment, queries of a block)
  AlignedFloats factors_;                          // (keys of a segment, queries of a block)
  AlignedFloats dscores_, weights_;                // (keys of a segment, queries of a segment in rows_apart)
  std::int64_t dquery_place_;
  AlignedFloats dqueries_;         // (places, blocks, queries of a block, row)
  AlignedFloats dkeys_, dvalues_;  // (places, keys of a segment, row)
};

/// Calls query_done(b, h, q, dq) for every query of every head and key_done(b, h, k, dk, dv) for every key.
template <class T, class QueryDone, class KeyDone>
void for_each_gradient(const ReferenceLayer<float>& layer, const HeadSource<T>& source, const Tensor& dy,
                       const Tensor& y, const Tensor& log_sum_exp, QueryDone&& query_done, KeyDone&& key_done)
{
  const std::int64_t heads = layer.shape.heads.count;
#pragma omp parallel
  {
    BlockedGradient<T> gradient(layer);
#pragma omp for
    for (std::int64_t bh = 0; bh < layer.shape.B * heads; ++bh) {
      const std::int64_t b = bh / heads, h = bh % heads, at = layer.offset(b, h, 0);
      gradient.compute(
          source.head(layer, b, h),
          {dy.data<T>() + at, y.data<T>() + at, heads * layer.shape.D,
           log_sum_exp.data<float>() + layer.row(b, h, 0)},
          b, h, [&](std::int64_t q, const float* dq) { query_done(b, h, q, dq); },
          [&](std::int64_t k, const float* dk, const float* dv) { key_done(b, h, k, dk, dv); });
    }
  }
}

}  // namespace

void ExactKernels::attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y,
                                      const Tensor& log_sum_exp, const Tensor& qkv, const AttentionShape& shape,
                                      const Dropout& dropout) const
{
  with_real_type(y.type(), [&]<class T>(T) {
    if constexpr (std::is_same_v<T, double>) {  // for tests
      ReferenceKernels::attention_backward(dqkv, dy, y, log_sum_exp, qkv, shape, dropout);
    } else {
      const ReferenceLayer<float> layer(shape, all_tokens(shape), dropout);
      const auto round = [&](T* to, const float* from) {
        for (std::int64_t d = 0; d < shape.D; ++d) to[d] = T(from[d]);
      };
      const auto head = [&](std::int64_t b, std::int64_t h) { return HeadView<T>(dqkv.data<T>(), shape, b, h); };
      for_each_gradient<T>(
          layer, {qkv.data<T>()}, dy, y, log_sum_exp,
          [&](std::int64_t b, std::int64_t h, std::int64_t q, const float* dq) { round(head(b, h).query(q), dq); },
          [&](std::int64_t b, std::int64_t h, std::int64_t k, const float* dk, const float* dv) {
            round(head(b, h).key(k), dk);
            round(head(b, h).value(k), dv);
          });
    }
  });
}

void ExactKernels::attention_partial_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dy,
                                              const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv,
                                              const Tensor& kv, const AttentionShape& shape,
                                              const AttentionRuns& runs, const Dropout& dropout) const
{
  with_real_type(y.type(), [&]<class T>(T) {
    if constexpr (std::is_same_v<T, double>) {
      ReferenceKernels::attention_partial_backward(dq, dkv, dy, y, log_sum_exp, qkv, kv, shape, runs, dropout);
    } else {
      const ReferenceLayer<float> layer(shape, runs, dropout);
      const std::int64_t D = shape.D, width = shape.heads.count * D;
      for_each_gradient<T>(
          layer, {qkv.data<T>(), kv.data<T>()}, dy, y, log_sum_exp,
          [&](std::int64_t b, std::int64_t h, std::int64_t q, const float* from) {
            std::copy_n(from, D, dq.data<float>() + layer.offset(b, h, q));
          },
          [&](std::int64_t b, std::int64_t h, std::int64_t k, const float* dk, const float* dv) {
            float* const to = dkv.data<float>() + (b * runs.keys.count + k) * 2 * width + h * D;
            std::copy_n(dk, D, to);
            std::copy_n(dv, D, to + width);
          });
    }
  });
}

}  // namespace rankwise
