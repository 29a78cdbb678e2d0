// Records: condensed tensors, their file, and what the first difference of two runs looks like.

#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "lessons/frame/instruments/first_difference.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/testing.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr std::int64_t n = 600;  // elements of a tensor
constexpr std::int64_t G = 8;    // sequences
constexpr int N = 4;             // ranks, each with two micro-batches of one sequence

const ModelConfig config = tiny_config(1, 2, 16, 6);

std::vector<float> tensor(std::int64_t seed)
{
  std::vector<float> values;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>(number(i, 10 + seed)));
  return values;
}

std::vector<float> scaled(float factor, std::vector<float> values)
{
  for (float& value : values) value *= factor;
  return values;
}

/// The sum of the gradients of some sequences.
std::vector<float> sum(const std::vector<std::int64_t>& sequences)
{
  std::vector<float> all(static_cast<std::size_t>(n));
  for (const std::int64_t g : sequences) {
    const std::vector<float> one = tensor(g);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] += one[i];
  }
  return all;
}

/// A run of which one tensor's gradient and its sum were noted.
struct Notes {
  Record record = {.devices = N, .exact = true, .global_batch = G, .names = record_names(config), .entries = {}};

  void add(std::int64_t step, StepPhase phase, Range sequences, std::int64_t rank, const std::vector<float>& values,
           Range elements = {0, n})
  {
    std::int64_t name = 0;
    while (record.names[static_cast<std::size_t>(name)] != "h.0.mlp.c_fc.weight") ++name;
    record.entries.push_back({step,
                              phase,
                              1,
                              name,
                              sequences,
                              elements,
                              {0, 1},
                              rank,
                              condense(elements.first, values.data(), elements.count)});
  }

  /// One step: gradients of all sequences, two a rank, and @p total on the ranks that have it.
  static Notes step(const std::vector<std::vector<float>>& total)
  {
    Notes notes;
    for (std::int64_t g = 0; g < G; ++g) notes.add(0, StepPhase::backward, {g, 1}, g / 2, tensor(g));
    for (std::size_t r = 0; r < total.size(); ++r)
      notes.add(0, StepPhase::sums, {0, G}, static_cast<std::int64_t>(r), total[r]);
    return notes;
  }
};

const std::vector<std::int64_t> all{0, 1, 2, 3, 4, 5, 6, 7};

/// What is said of a sum, where the gradients are right.
std::string said_of(const std::vector<std::vector<float>>& total)
{
  return compare(Notes::step({sum(all)}).record, Notes::step(total).record).text;
}

}  // namespace

TEST_CASE("condense: the parts of a tensor add up, wherever it is cut")
{
  const std::vector<float> values = tensor(1);
  const Condensed whole = condense(0, values.data(), n);
  for (const std::int64_t cut : {1, 7, 300, 599}) {
    Condensed parts = condense(cut, values.data() + cut, n - cut);
    parts += condense(0, values.data(), cut);
    CHECK(parts.digest == whole.digest);
    CHECK(parts.squares == Approx(whole.squares));
    CHECK(distance(parts, whole) < 1e-4);
  }
  // Columns of shards, of q, k and v side by side.
  Condensed columns;
  const std::int64_t rows = 10, sections = 3, w = 20;
  for (const std::int64_t half : {0, 1}) {
    std::vector<float> own;
    for (std::int64_t i = 0; i < n; ++i)
      if (i % w / (w / 2) == half) own.push_back(values[static_cast<std::size_t>(i)]);
    columns += condense({{0, rows}, {half * w / 2, w / 2}, w, sections}, own.data(), sections * w / 2);
  }
  CHECK(columns.digest == whole.digest);
}

TEST_CASE("condense: a bit, a place and an order matter, the sign of a zero does not")
{
  const std::vector<float> values = tensor(1);
  const std::uint64_t digest = condense(0, values.data(), n).digest;
  for (const std::size_t i : {0, 299, 599}) {
    std::vector<float> other = values;
    other[i] = std::nextafter(other[i], 9.0f);
    CHECK(condense(0, other.data(), n).digest != digest);
    other = values;
    std::swap(other[i], other[(i + 1) % n]);
    CHECK(condense(0, other.data(), n).digest != digest);
  }
  CHECK(condense(1, values.data(), n).digest != digest);
  const std::vector<float> zeros{0.0f, -0.0f}, swapped{-0.0f, 0.0f};
  CHECK(condense(0, zeros.data(), 2).digest == condense(0, swapped.data(), 2).digest);
}

TEST_CASE("distance: is near the norm of the difference")
{
  double mean = 0;
  for (std::int64_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> a = tensor(seed), b = tensor(seed + 100);
    double squares = 0;
    for (std::size_t i = 0; i < a.size(); ++i) squares += std::pow(a[i] - b[i], 2);
    mean += distance(condense(0, a.data(), n), condense(0, b.data(), n)) / std::sqrt(squares) / 20;
  }
  CHECK(mean == Approx(1).margin(0.25));
}

TEST_CASE("compare: equal runs do not differ, and every mistake of a sum is named")
{
  CHECK(said_of({sum(all)}).empty());
  CHECK(said_of({sum(all), sum(all), sum(all), sum(all)}).empty());
  const auto says = [](const std::vector<std::vector<float>>& total, const std::string& text) {
    INFO(said_of(total));
    CHECK(said_of(total).find("step 0, gradients summed: summed gradient of h.0.mlp.c_fc.weight") == 0);
    CHECK(said_of(total).find(text) != std::string::npos);
  };
  says({sum({2, 3})}, "It is the gradient of rank 1 alone, not the sum over all.");
  says({sum({0, 1, 2, 3, 6, 7})}, "It lacks the gradient of rank 2.");
  says({sum({0, 1, 1, 2, 3, 4, 5, 6, 7})}, "It has the gradient of sequence 1 twice.");
  says({sum({1, 3, 5, 7})}, "It lacks the gradient of micro-batch 0 of each rank.");
  says({sum({0, 1, 0, 1, 0, 1, 0, 1})}, "It is 4 times the gradient of rank 0, not the sum over all.");
  says({scaled(0.25f, sum(all))}, "It is 1/4 of the right one: a mean");
  says({scaled(4, sum(all))}, "It is 4 times the right one");
  says({scaled(3, sum(all))}, "It is 3 times the right one.");
  says({scaled(-1, sum(all))}, "It has the other sign.");
  says({scaled(0, sum(all))}, "It is zero");
  says({scaled(std::numeric_limits<float>::quiet_NaN(), sum(all))}, "It is not finite.");
  says({tensor(50)}, "the sum over them differs");
  says({sum({0, 1}), sum({2, 3})},
       "Ranks 0 and 1 have different copies of it. The copy of rank 0 is the gradient of rank 0");
}

TEST_CASE("compare: a stale value, another sequence, and sequences that no rank computes")
{
  Notes right, stale, swapped, lacking;
  for (std::int64_t step = 0; step < 2; ++step)
    for (std::int64_t g = 0; g < G; ++g) {
      right.add(step, StepPhase::forward, {g, 1}, 0, tensor(step * 20 + g));
      stale.add(step, StepPhase::forward, {g, 1}, 0, tensor(g));
      swapped.add(step, StepPhase::forward, {g, 1}, 0, tensor(step * 20 + (g == 3 ? 2 : g)));
      if (step == 0 || g < 6) lacking.add(step, StepPhase::forward, {g, 1}, g / 4, tensor(step * 20 + g));
    }
  const Comparison of_stale = compare(right.record, stale.record);
  CHECK(of_stale.step == 1);
  CHECK(of_stale.text.find("sequences 0 to 7, on rank 0. It is that of step 0: stale.") != std::string::npos);
  CHECK(compare(right.record, swapped.record).text ==
        "step 0, forward: h.0.mlp.c_fc.weight, sequence 3 (equal on sequences 0 to 2, 4 to 7), on rank 0. "
        "Sequence 3 has the values of sequence 2.");
  CHECK(compare(right.record, lacking.record).text == "step 1, forward: no rank computes sequences 6 to 7.");
}

TEST_CASE("compare: shards that are shifted, stale or missing, and a tensor that is transposed")
{
  constexpr std::int64_t half = n / 2;
  const std::vector<float> old = tensor(1), values = tensor(2);
  const auto part = [&](const std::vector<float>& of, std::int64_t first) {
    return std::vector<float>(of.begin() + first, of.begin() + first + half);
  };
  // What is said where two ranks have these halves of the sum in step 1.
  const auto said = [&](const std::vector<float>& first, const std::vector<float>& second) {
    Notes right, other;
    right.add(0, StepPhase::sums, {0, G}, 0, old);
    right.add(1, StepPhase::sums, {0, G}, 0, values);
    other.add(0, StepPhase::sums, {0, G}, 0, part(old, 0), {0, half});
    other.add(0, StepPhase::sums, {0, G}, 1, part(old, half), {half, half});
    other.add(1, StepPhase::sums, {0, G}, 0, first, {0, half});
    other.add(1, StepPhase::sums, {0, G}, 1, second, {half, half});
    return compare(right.record, other.record).text;
  };
  CHECK(said(part(values, 0), part(values, half)).empty());
  CHECK(said(part(values, half), part(values, 0)).find("It has all the right numbers, at other places") !=
        std::string::npos);
  CHECK(said(part(values, half), part(values, half)).find("Ranks 0 and 1 have the same numbers") !=
        std::string::npos);
  CHECK(said(part(values, 0), part(old, half)).find("The part of rank 1 is that of step 0: stale") !=
        std::string::npos);
  CHECK(said(part(values, 0), scaled(0, part(old, half))).find("The part of rank 1 is zero") != std::string::npos);
  std::vector<float> transposed;
  for (std::int64_t column = 0; column < 20; ++column)
    for (std::int64_t row = 0; row < n / 20; ++row)
      transposed.push_back(values[static_cast<std::size_t>(row * 20 + column)]);
  CHECK(said(part(transposed, 0), part(transposed, half)).find("It has all the right numbers") !=
        std::string::npos);
}

TEST_CASE("compare: in fast arithmetic a small part of the norm is no difference, in exact arithmetic every bit is")
{
  const auto compared = [](float factor, bool exact) {
    Notes right = Notes::step({sum(all)}), other = Notes::step({scaled(factor, sum(all))});
    right.record.exact = other.record.exact = exact;
    return compare(right.record, other.record);
  };
  CHECK(compared(1 + 1e-6f, false).step == -1);
  CHECK(compared(1 + 1e-6f, true).step == 0);
  CHECK(compared(1.01f, false).step == 0);
}

TEST_CASE("read_record: has the steps that write_step wrote, and refuses what is no record")
{
  const std::string path = "test_record.h5";
  const Notes notes = Notes::step({sum(all)});
  std::vector<RecordEntry> next = notes.record.entries;
  for (RecordEntry& e : next) e.step = 1;
  write_step(path, notes.record, true, notes.record.entries, {});
  write_step(path, notes.record, false, next, {});
  const Record read = read_record(path);
  CHECK(read.names == notes.record.names);
  CHECK(read.entries.size() == 2 * notes.record.entries.size());
  CHECK(read.entries.back().step == 1);
  CHECK(compare(read, notes.record).step == -1);
  CHECK(compare(read, read).step_of_one.empty());
  CHECK(compare(read, notes.record).step_of_one ==
        "Only the first record has step 1: the first has 2, the second 1 of them.");
  CHECK(compare(read, notes.record).compared == G + 1);
  std::remove(path.c_str());
  CHECK_THROWS_AS(read_record(path), UserError);
  Record other = notes.record;
  other.global_batch = 4;
  CHECK_THROWS_AS(compare(read, other), UserError);
  other = notes.record;
  other.entries.clear();
  CHECK_THROWS_AS(compare(read, other), UserError);
}
