// Channels in the lanes of vectors: how a tensor (D, N) of channels and states is divided among vectors for sums over the states.
//
// A lane contains one channel, a vector one state index, so that sums over states are plain additions of vectors. If fewer
// channels than lanes are left, they occupy a power of two of lanes, and the other lanes contain further states of the same
// channels, which are added to the first lanes at the end. A unit of work is one or two vectors of the same channels.
#pragma once

#include "parallel.h"
#include "simd.h"

namespace longscan::LONGSCAN_ISA {

struct Block {
  int64_t channel;  // the first channel
  int count;        // number of channels
  int fold;         // number of lanes of these channels: lane l has channel l % fold
  int64_t vector;   // the first vector
  int64_t vectors;
};

struct Unit {
  int64_t block, vector;
  int vectors;
};

// The channel and the state of each lane of each vector.
template <class T> class Layout {
 public:
  static constexpr int LANES = lanes<T>;

  Layout(int64_t channels, int64_t states) : channels_(channels), states_(states), full_(channels / LANES) {
    rest_ = int(channels % LANES);
    for (fold_ = 1; fold_ < rest_;) fold_ *= 2;
    blocks = full_ + (rest_ > 0);
    rest_vectors_ = rest_ > 0 ? ceil_div(states, LANES / fold_) : 0;
    vectors = full_ * states + rest_vectors_;
    units = full_ * ceil_div(states, 2) + ceil_div(rest_vectors_, 2);
  }

  int64_t blocks, vectors, units;

  Block block(int64_t b) const {
    if (b < full_) return {b * LANES, LANES, LANES, b * states_, states_};
    return {b * LANES, rest_, fold_, b * states_, rest_vectors_};
  }
  Unit unit(int64_t index) const {
    int64_t per_block = ceil_div(states_, 2), b = index / (per_block > 0 ? per_block : 1);
    if (b > full_) b = full_;
    Block in = block(b);
    int64_t first = 2 * (index - b * per_block);
    return {b, in.vector + first, in.vectors - first < 2 ? 1 : 2};
  }
  // Row of (D, N) that a lane contains, -1 for none.
  int64_t row(const Block& in, int64_t vector, int lane) const {
    int64_t channel = lane % in.fold, state = (vector - in.vector) * (LANES / in.fold) + lane / in.fold;
    return channel < in.count && state < states_ ? (in.channel + channel) * states_ + state : -1;
  }
  int64_t channels() const { return channels_; }

 private:
  int64_t channels_, states_, full_;
  int rest_, fold_;
  int64_t rest_vectors_;
};

// The channels of a block from a row (.., D) in the lanes, each as often as it occurs in them.
template <class T> INLINE Vec<T> load_channels(const T* row, const Block& in) {
  if (in.count == lanes<T>) return load(row + in.channel);
  T buffer[lanes<T>];
  for (int l = 0; l < lanes<T>; l++) buffer[l] = l % in.fold < in.count ? row[in.channel + l % in.fold] : 0;
  return load(buffer);
}

// The sum over the lanes with the same channel, in the first lane of that channel.
template <class T> INLINE Vec<T> fold_channels(Vec<T> x, const Block& in) {
  if (in.fold == lanes<T>) return x;
  T buffer[lanes<T>];
  store(buffer, x);
  for (int width = lanes<T> / 2; width >= in.fold; width /= 2)
    for (int l = 0; l < width; l++) buffer[l] += buffer[l + width];
  return load(buffer);
}

template <class T> INLINE void store_channels(T* row, const Block& in, Vec<T> x) {
  if (in.count == lanes<T>) return store(row + in.channel, x);
  store(row + in.channel, x, in.count);
}

}  // namespace longscan::LONGSCAN_ISA
