#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/program/time_ledger.hpp"
#include "lessons/parallel/offload/tiers.hpp"
#include "lessons/parallel/offload/transfer_queue.hpp"

/// @file
/// For the judge of lesson 07: blocks that come and go slowly, with a log of what was begun.

namespace rankwise::judge {

/// Blocks in memory over a slow link. Transfers run one after the other in each direction.
class SlowStore final : public BlockStore {
 public:
  SlowStore(Tiers& tiers, std::vector<std::vector<float>> blocks)
      : BlockStore(tiers, Tier::host, Category::parameters, DType::f32, "blocks"), memory(std::move(blocks))
  {
  }

  Pending fetch(std::size_t block, const Tensor& to, Tier) override { return begin(true, block, to); }
  Pending store(std::size_t block, const Tensor& from, Tier) override { return begin(false, block, from); }

  /// What was begun since the last call, as "fetch 3", in alphabetical order.
  std::vector<std::string> begun()
  {
    std::vector<std::string> names;
    for (; told_ < log_.size(); ++told_) names.push_back(log_[told_]->name);
    std::sort(names.begin(), names.end());
    return names;
  }
  /// Returns when all that was begun is done.
  void finish() const
  {
    for (const auto& transfer : log_)
      while (!transfer->done) std::this_thread::yield();
  }
  /// Transfers do not end before let_go(), unless somebody waits for them.
  void hold() { held_ = true; }
  /// Ends that.
  void let_go() { held_ = false; }
  /// Whether a transfer that was held had to be waited for.
  bool gave_up() const { return gave_up_; }
  /// Whether two transfers were under way to or from one slot.
  bool shared_a_slot() const { return shared_a_slot_; }

  std::vector<std::vector<float>> memory;  ///< by block

 private:
  struct Transfer {
    std::string name;
    const void* slot = nullptr;
    std::atomic<bool> done = false;
  };

  Pending begin(bool fetched, std::size_t block, const Tensor& slot)
  {
    for (const auto& other : log_) shared_a_slot_ |= other->slot == slot.raw() && !other->done;
    Transfer& transfer = *log_.emplace_back(std::make_unique<Transfer>());
    transfer.name = (fetched ? "fetch " : "store ") + std::to_string(block);
    transfer.slot = slot.raw();
    const auto move = [this, &transfer, fetched, block, slot] {
      using namespace std::chrono_literals;
      const auto limit = std::chrono::steady_clock::now() + 3s;
      while (held_ && !gave_up_) {
        std::this_thread::sleep_for(1ms);
        if (std::chrono::steady_clock::now() > limit) gave_up_ = true;
      }
      std::this_thread::sleep_for(fetched ? 3ms : 15ms);  // slots are needed again before they are free
      const std::span<float> used = slot.span<float>();
      if (fetched)
        std::copy(memory[block].begin(), memory[block].end(), used.begin());
      else
        std::copy(used.begin(), used.end(), memory[block].begin());
      transfer.done = true;
    };
    const auto number = static_cast<std::int64_t>(block);
    return fetched ? queue_.fetch(number, move) : queue_.store(number, move);
  }

  std::vector<std::unique_ptr<Transfer>> log_;
  std::size_t told_ = 0;
  bool shared_a_slot_ = false;
  std::atomic<bool> held_ = false, gave_up_ = false;
  TimeLedger time_;
  TransferQueue queue_{time_};  // last: it uses all of the above
};

}  // namespace rankwise::judge
