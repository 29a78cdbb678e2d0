#include "lessons/frame/instruments/first_difference.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"
#include "lessons/frame/instruments/suspects.hpp"

namespace rankwise {

namespace {

/// True if only rounding decides a tensor's values: a key's bias adds the same to all scores of a query, so its
/// gradient is zero but for rounding, and AdamW makes whole steps of that.
bool undetermined(const std::string& name)
{
  return name.ends_with("c_attn.bias") || name.ends_with("qkv.bias") || name.ends_with("q_k_v");
}

/// Bound of the norm of a difference, as a part of the norm. Each layer and each step adds to it.
double tolerance(bool rounded, const RecordKey& key)
{
  constexpr double of_f32 = 0x1p-18, of_bf16 = 0x1p-5;
  const auto layers = static_cast<double>(key.order) / 16;
  const double depth = key.phase == StepPhase::forward ? 1 + layers / 2 : 8 + layers;
  return (rounded ? of_bf16 : of_f32) * depth * static_cast<double>(1 + key.step * key.step);
}

/// Compares merged notes of two runs.
class Judge {
 public:
  Judge(const Record& right, const Record& other)
      : names_(right.names),
        rounded_(right.rounded || other.rounded),
        bits_(right.exact && other.exact && right.rounded == other.rounded)
  {
  }

  bool bits() const { return bits_; }
  bool differs(const RecordKey& key, const Condensed& a, const Condensed& b) const
  {
    if (bits_) return a.digest != b.digest;
    if (!std::isfinite(b.squares)) return true;
    if (undetermined(names_[static_cast<std::size_t>(key.tensor)])) return false;
    return distance(a, b) > tolerance(rounded_, key) * std::sqrt(a.squares);
  }
  /// True if ranks that have the same part of a tensor differ.
  bool differs(const RecordKey& key, const MergedNote& note) const
  {
    return std::ranges::any_of(
        note.copies, [&](const auto& pair) { return differs(key, pair.first->value, pair.second->value); });
  }

 private:
  const std::vector<std::string>& names_;
  bool rounded_, bits_;
};

/// Name of the numbers of a key, as "gradient of h.0.ln_1.weight".
std::string what(const RecordKey& key, const std::string& name)
{
  switch (key.phase) {
    case StepPhase::backward:
      return "gradient of " + name;
    case StepPhase::sums:
      return "summed gradient of " + name;
    case StepPhase::update:
      return name + " after the update";
    default:
      return name;
  }
}

/// Place of a difference: sequences and ranks.
std::string place_of(const MergedRecord& right, const MergedRecord& other, const Judge& judge,
                     const RecordKey& first)
{
  std::vector<Range> equal, different;
  std::set<std::int64_t> ranks;
  RecordKey begin = first;
  begin.sequences = {};
  for (auto i = other.notes.lower_bound(begin); i != other.notes.end() && i->first.same_tensor(first); ++i) {
    const auto of_right = right.notes.find(i->first);
    if (of_right == right.notes.end()) continue;
    const bool differs =
        judge.differs(i->first, of_right->second.sum, i->second.sum) || judge.differs(i->first, i->second);
    (differs ? different : equal).push_back(i->first.sequences);
    if (differs)
      for (const RecordEntry* part : i->second.parts) ranks.insert(part->device);
  }
  std::string text;
  if (first.phase == StepPhase::forward || first.phase == StepPhase::backward)
    text = ", " + text_of(different) + (equal.empty() ? "" : " (equal on " + text_of(equal) + ")");
  if (std::ssize(ranks) < other.record.devices)
    text += fmt::format(", on rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
  return text;
}

/// Sequences of a step that the right run computed and the other one did not, from its first tensor's notes.
std::vector<Range> not_computed(const MergedRecord& right, const MergedRecord& other, const RecordKey& first)
{
  std::vector<Range> missing;
  RecordKey key = first;
  key.sequences = {};
  for (auto i = right.notes.lower_bound(key); i != right.notes.end() && i->first.same_tensor(key); ++i)
    if (!other.notes.contains(i->first)) missing.push_back(i->first.sequences);
  return missing;
}

/// Enters the first difference.
void enter(Comparison& result, const RecordKey& key, const std::string& name, const std::string& text)
{
  result.step = key.step, result.phase = key.phase, result.tensor = name;
  result.text = fmt::format("step {}, {}: {}", key.step, name_of(key.phase), text);
}

/// The first step that only one of the records has, as a sentence; empty if there is none.
std::string step_of_one(const Record& right, const Record& other)
{
  std::set<std::int64_t> first, second, of_one;
  for (const RecordEntry& entry : right.entries) first.insert(entry.step);
  for (const RecordEntry& entry : other.entries) second.insert(entry.step);
  std::ranges::set_symmetric_difference(first, second, std::inserter(of_one, of_one.end()));
  if (of_one.empty()) return "";
  return fmt::format("Only the {} record has step {}: the first has {}, the second {} of them.",
                     first.contains(*of_one.begin()) ? "first" : "second", *of_one.begin(), first.size(),
                     second.size());
}

}  // namespace

Comparison compare(const Record& right, const Record& other)
{
  if (right.names != other.names || right.global_batch != other.global_batch || right.sizes != other.sizes)
    throw UserError("the two records are of different models, batches or lengths of sequences.",
                    "Compare runs with the same sizes, --global-batch and --sequence.");
  const Judge judge(right, other);
  const MergedRecord a(right), b(other);
  Comparison result;
  result.bits = judge.bits();
  result.step_of_one = step_of_one(right, other);
  std::optional<RecordKey> last;  // noted by both runs
  std::string last_different;
  for (const auto& [key, note] : b.notes) {
    const auto found = a.notes.find(key);
    if (found == a.notes.end()) continue;
    ++result.compared;
    const std::string& name = right.names[static_cast<std::size_t>(key.tensor)];
    if (result.step < 0 && key.phase == StepPhase::forward && (!last || last->step != key.step))
      if (const std::vector<Range> missing = not_computed(a, b, key); !missing.empty())
        enter(result, key, name, fmt::format("no rank computes {}.", text_of(missing)));
    last = key;
    if (!judge.differs(key, found->second.sum, note.sum) && !judge.differs(key, note)) continue;
    if (result.step < 0) {
      enter(result, key, name, what(key, name) + place_of(a, b, judge, key) + ".");
      for (const std::string& suspect : suspects(a, b, key)) result.text += " " + suspect;
    } else if (what(key, name) != last_different && result.after.size() < 3) {
      result.after.push_back(what(key, name));
    }
    last_different = what(key, name);
  }
  if (result.compared == 0)
    throw UserError("the two records have no tensor of the same step in common.",
                    "Compare runs that begin with the same step.");
  return result;
}

}  // namespace rankwise
