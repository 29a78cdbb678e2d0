// How lesson 08 divides a model: what each rank stores and owns, and which models cannot be divided.

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "lessons/parallel/tensor/split.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// The message of check_split() for nano with other heads or channels; empty if it accepts them.
std::string refusal(const SplitOptions& options, int ranks, std::int64_t sequence = 64, std::int64_t heads = 4,
                    std::int64_t channels = 64)
{
  ModelConfig config = preset("nano");
  config.heads = heads;
  config.channels = channels;
  try {
    check_split(options, config, sequence, ranks);
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("owned_elements: over all ranks every element of the model is counted once, padding by its rank")
{
  for (const int t : {1, 2, 3, 4, 6, 12}) {
    INFO(t << " parts");
    const ModelConfig config = tiny_config(2, 12, 48, 6);
    const ParameterTable whole(config);
    std::vector<int> counted(static_cast<std::size_t>(whole.elements()));
    for (int part = 0; part < t; ++part) {
      const ParameterTable table(config, {part, t});
      std::vector<int> mine(static_cast<std::size_t>(table.elements()));
      for (const Range& range : owned_elements(table, {part, t}))
        for (std::int64_t i = range.first; i < range.end(); ++i) ++mine.at(static_cast<std::size_t>(i));
      for (const Parameter& p : table.entries()) {
        const bool answers = p.split != Split::none || part == 0;
        CHECK(std::count(mine.begin() + p.elements.first, mine.begin() + p.elements.end(), answers ? 1 : 0) ==
              p.elements.count);
        const std::int64_t columns = p.shape[p.shape.rank() - 1];
        const std::int64_t first = whole.entries()[static_cast<std::size_t>(p.number)].elements.first;
        if (!answers) continue;
        for (const Slab& slab : table.slabs(p))
          for (std::int64_t r = slab.rows.first; r < slab.rows.end(); ++r)
            for (std::int64_t c = slab.columns.first; c < slab.columns.end(); ++c)
              ++counted.at(static_cast<std::size_t>(first + r * columns + c));
      }
    }
    for (const Parameter& p : whole.entries())
      CHECK(std::count(counted.begin() + p.elements.first, counted.begin() + p.elements.first + p.shape.elements(),
                       1) == p.shape.elements());
  }
}

TEST_CASE("owned_elements: neighbours are one range")
{
  const ModelConfig config = tiny_config(2, 4, 32, 6);
  const ParameterTable first(config, {0, 2}), second(config, {1, 2});
  CHECK(owned_elements(first, {0, 2}) == std::vector<Range>{{0, first.elements()}});
  const std::vector<Range> ranges = owned_elements(second, {1, 2});
  CHECK(ranges.size() == 1 + 4);  // wte; of each branch c_attn or c_fc, its bias, and c_proj behind it
  for (std::size_t i = 0; i + 1 < ranges.size(); ++i) CHECK(ranges[i].end() < ranges[i + 1].first);
  CHECK(ranges[0] == Range{0, 8 * 32});
  CHECK(ranges[1].count == 32 * 48 + 48 + 16 * 32);
  CHECK(ranges[2].count == 32 * 64 + 64 + 64 * 32);
}

TEST_CASE("SplitOptions: t is as requested, or the number of ranks over the replicas")
{
  CHECK(SplitOptions{}.parts(4) == 4);
  CHECK(SplitOptions{.dp = 2}.parts(8) == 4);
  CHECK(SplitOptions{.tp = 2}.parts(8) == 2);
  CHECK(SplitOptions{.tp = 2, .dp = 4}.parts(8) == 2);
}

TEST_CASE("divided: a part of each layer, and of each sequence if that is divided too")
{
  const ActivationShape whole{DType::bf16, 3, 8, {}, true};
  const ActivationShape plain = divided(whole, {}, {1, 2});
  CHECK(plain.type == DType::bf16);
  CHECK(plain.recompute);
  CHECK((plain.part.index == 1 && plain.part.count == 2));
  CHECK(plain.shared_rows() == 24);
  CHECK(plain.normalised_rows() == 24);
  const ActivationShape rows = divided(whole, {.sequence_parallel = true}, {1, 2});
  CHECK((rows.tokens.index == 1 && rows.tokens.count == 2));
  CHECK(rows.shared_rows() == 12);
  CHECK(rows.normalised_rows() == 24);
  CHECK(divided(whole, {.sequence_parallel = true, .regather = true}, {1, 2}).normalised_rows() == 12);
}

TEST_CASE("check_split: accepts models that can be divided")
{
  for (const int t : {1, 2, 4}) {
    CHECK(refusal({}, t).empty());
    CHECK(refusal({.sequence_parallel = true}, t).empty());
    CHECK(refusal({.dp = 2, .sequence_parallel = true, .regather = true}, 2 * t).empty());
    CHECK(refusal({.tp = t, .dp = 3}, 3 * t).empty());
  }
  CHECK(refusal({}, 3, 63, 6, 96).empty());
  CHECK(refusal({}, 2, 63).empty());  // no token is divided
}

TEST_CASE("check_split: refuses degrees that do not divide the model, and lists those that do")
{
  CHECK_THAT(refusal({}, 3),
             Contains("--tp=3 does not divide the 4 heads") && Contains("--tp=1, 2, 4") && Contains("--heads"));
  CHECK_THAT(refusal({.tp = 8}, 8), Contains("--tp=8 does not divide the 4 heads"));
  CHECK_THAT(refusal({}, 3, 64, 3, 64), Contains("--tp=3 does not divide the 256 hidden channels") &&
                                            Contains("--tp=1, 2, 4, 8, 16, 32, 64, 128") && Contains("--channels"));
  CHECK_THAT(refusal({.sequence_parallel = true}, 4, 62),
             Contains("--tp=4 does not divide the 62 tokens of a sequence") && Contains("--tp=1, 2, 31, 62") &&
                 Contains("--sequence"));
  CHECK_THAT(refusal({.tp = 2}, 4), Contains("4") && Contains("2"));
  CHECK_THAT(refusal({.tp = 4, .dp = 2}, 4), Contains("8"));
  CHECK_THAT(refusal({.dp = 3}, 4), Contains("4 ranks cannot be shared out among --dp=3 replicas"));
  CHECK_FALSE(refusal({.dp = 0}, 4).empty());
  CHECK_THAT(refusal({.dp = 8}, 4), Contains("--dp=8"));  // nothing is left for a part
  CHECK_THAT(refusal({.tp = -1}, 2), Contains("--tp=-1"));
  CHECK_THAT(refusal({.regather = true}, 2), Contains("--regather needs --sequence-parallel"));
}

TEST_CASE("describe_split: names the rows or columns that a rank holds of each tensor")
{
  ModelConfig config = preset("nano");
  config.vocabulary = 250;
  const std::string text = describe_split(config, {1, 2});
  for (const char* line :
       {"tensor-parallel rank 1 of 2 has\n", "  wte.weight                  (250, 64)  rows 128..249\n",
        "  wpe.weight                   (64, 64)  all",
        "  h.0.attn.c_attn.weight      (64, 192)  columns 32..63 96..127 160..191\n",
        "  h.0.attn.c_attn.bias            (192)  columns 32..63 96..127 160..191\n",
        "  h.0.attn.c_proj.weight       (64, 64)  rows 32..63\n", "  h.0.attn.c_proj.bias             (64)  all",
        "  h.0.mlp.c_fc.weight         (64, 256)  columns 128..255\n",
        "  h.0.mlp.c_proj.weight       (256, 64)  rows 128..255\n"})
    CHECK_THAT(text, Contains(line));
  CHECK(std::count(text.begin(), text.end(), '\n') == 1 + 2 + 12);
}
