// The first convolution of a network, which has few channels on both sides and needs no gradient of its input.
//
// With output channels in the lanes of a vector, six of them would leave most lanes empty. Here neighbouring pooling
// windows of a row lie in the lanes, and every channel has vectors of its own, one for each pixel of the window. So the
// pool is a maximum of whole vectors, and only its result is turned into the channels-last order of the next layer.
// For that the columns of the input are dealt out: those a whole window apart become neighbours in memory.
// Of every sample and channel a list is kept of the windows through which a gradient flows, with the patch each won
// with (dead windows are not listed): the weight gradient is a sum over that list, a vector per row of the patch.
#pragma once
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "compact.hpp"
#include "conv.hpp"
#include "shuffle.hpp"

namespace feddag {

constexpr int kMostChannels = kVectorBytes == 64 ? 16 : 8;  // that come out; with more, scoring by the tile is faster
constexpr int kRowSums = kVectorBytes == 64 ? 24 : 12;      // vectors of sums held in registers at once
constexpr int row_channels(int pixels) { return std::min(kRowSums / pixels, 8); }

// Where one vector of windows reads its pixels: of every tap `Pool` offsets, one for each column of the window; a row
// of the window is `down` after the one above it.
struct Reach {
    const std::ptrdiff_t* offset;
    int taps;
    std::ptrdiff_t down;
};

// sums[c][pixel] = bias[c] + sum over taps of weight[tap][c] * x, for C channels of a vector of windows.
template <class T, int Pool, int C>
void row_sums(const T* x, Reach reach, const T* weight, int weight_step, const T* bias, T* sums) {
    constexpr int L = kLanes<T>, Pixels = Pool * Pool;
    Vec<T> sum[Pixels][C];
    FEDDAG_UNROLL for (int p = 0; p < Pixels; p++)
        FEDDAG_UNROLL for (int c = 0; c < C; c++) sum[p][c] = splat(bias[c]);
    const std::ptrdiff_t* offset = reach.offset;
    for (int t = 0; t < reach.taps; t++, weight += weight_step, offset += Pool) {
        FEDDAG_UNROLL for (int p = 0; p < Pixels; p++) {
            const Vec<T> pixel = load(x + offset[p % Pool] + p / Pool * reach.down);
            FEDDAG_UNROLL for (int c = 0; c < C; c++) sum[p][c] += weight[c] * pixel;
        }
    }
    FEDDAG_UNROLL for (int c = 0; c < C; c++)
        FEDDAG_UNROLL for (int p = 0; p < Pixels; p++) store(sums + (c * Pixels + p) * L, sum[p][c]);
}

template <class T> using RowSums = void (*)(const T*, Reach, const T*, int, const T*, T*);

template <class T, int Pool, int... C> constexpr auto row_sums_of(std::integer_sequence<int, C...>) {
    return std::array<RowSums<T>, sizeof...(C)>{row_sums<T, Pool, C + 1>...};
}

// For this many channels (from 1).
template <class T> RowSums<T> row_sums_for(int pool, int channels) {
    static constexpr auto one = row_sums_of<T, 1>(std::make_integer_sequence<int, row_channels(1)>());
    static constexpr auto two = row_sums_of<T, 2>(std::make_integer_sequence<int, row_channels(4)>());
    return pool == 1 ? one[channels - 1] : two[channels - 1];
}

// Windows through which a gradient flows, of one sample and channel: the patch each won with, the output it is.
template <class T> struct Alive {
    const Index<T>*patch, *target;
    int count;
};

constexpr int kPatchVectors = 8;  // of a patch, whose sums are held in registers at once

// sum[v] += gradient * x[patch + shift[v]] over a list, V vectors of W elements at once; returns the sum of gradients.
template <class T, int W, int V>
T add_alive(const T* x, const T* grad, Alive<T> list, const int* shift, T* sum) {
    using Part = typename VectorOf<T, W>::type;
    constexpr int Sets = V <= 6 ? 2 : 1;  // a second set of sums hides latency when there are few
    Part total[Sets][V] = {};
    T gradients[Sets] = {};
    std::ptrdiff_t move[V];
    FEDDAG_UNROLL for (int v = 0; v < V; v++) move[v] = shift[v];
    const auto add = [&](int k, int e) {
        const T g = grad[list.target[e]];
        const T* patch = x + list.patch[e];
        FEDDAG_UNROLL for (int v = 0; v < V; v++) {
            Part pixels;
            std::memcpy(&pixels, patch + move[v], sizeof pixels);
            total[k][v] += g * pixels;
        }
        gradients[k] += g;
    };
    int e = 0;
    for (; e + Sets <= list.count; e += Sets)
        FEDDAG_UNROLL for (int k = 0; k < Sets; k++) add(k, e + k);
    for (; e < list.count; e++) add(0, e);
    FEDDAG_UNROLL for (int v = 0; v < V; v++) {
        Part all;
        std::memcpy(&all, sum + v * W, sizeof all);
        FEDDAG_UNROLL for (int k = 0; k < Sets; k++) all += total[k][v];
        std::memcpy(sum + v * W, &all, sizeof all);
    }
    return std::accumulate(gradients, gradients + Sets, T(0));
}

template <class T> using AddAlive = T (*)(const T*, const T*, Alive<T>, const int*, T*);

template <class T, int W, int... V> constexpr auto alive_adders(std::integer_sequence<int, V...>) {
    return std::array<AddAlive<T>, sizeof...(V)>{add_alive<T, W, V + 1>...};
}

// For so many vectors (from 1) of this width: a whole vector, half a one or a quarter.
template <class T> AddAlive<T> add_alive_for(int width, int vectors) {
    constexpr int L = kLanes<T>;
    using Counts = std::make_integer_sequence<int, kPatchVectors>;
    static constexpr auto whole = alive_adders<T, L>(Counts()), half = alive_adders<T, part_lanes<T>(2)>(Counts()),
                          quarter = alive_adders<T, part_lanes<T>(4)>(Counts());
    return (width == L ? whole : 2 * width == L ? half : quarter)[vectors - 1];
}

template <class T> class RowConv final : public Layer<T> {
public:
    // Whether windows fill the lanes about as well as output channels would: backward it is faster all the more.
    static bool suits(const ConvShape& s, const Layout& in, const Layout& out) {
        const auto filled = [](int n) { return double(n) / round_up(n, L); };
        return !in.series && s.pool <= 2 && out.c <= kMostChannels && 8 * filled(out.w) >= 7 * filled(out.c);
    }

    RowConv(const ConvShape& shape, Layout input, Layout output, int batch) : s_(shape) {
        in = input;
        out = output;
        row_ = in.width() * in.stored;
        patch_row_ = s_.kernel * in.stored;
        part_ = part_lanes<T>(patch_row_ <= part_lanes<T>(4) ? 4 : patch_row_ <= part_lanes<T>(2) ? 2 : 1);
        patch_step_ = round_up(patch_row_, part_);
        lay_out_parameters();
        lay_out_reach();
        for (int ky = 0; ky < s_.kernel; ky++)
            for (int v = 0; v < patch_row_; v += part_) shift_.push_back(ky * row_ + v);
        for (int i = 0; i < L; i++) lane_[i] = i;
        packed_ = Buffer<T>(std::size_t(s_.kernel) * patch_row_ * out.c);
        planes_ = Buffer<T>(std::size_t(in.h + 2 * in.pad) * streams_ * plane_);
        sums_ = Buffer<T>(std::size_t(row_channels(s_.pool * s_.pool)) * s_.pool * s_.pool * L);
        pooled_ = Buffer<T>(kMostChannels * L);
        room_ = out.h * out.w + L;
        patch_list_ = Buffer<Index<T>>(std::size_t(batch) * out.c * room_);
        target_list_ = Buffer<Index<T>>(patch_list_.size());
        count_.resize(std::size_t(batch) * out.c);
    }

    const char* way() const override { return "rows"; }

    void refresh() override {
        T* to = packed_.data();
        for (int ky = 0; ky < s_.kernel; ky++)
            for (int t = 0; t < patch_row_; t++)
                for (int c = 0; c < out.c; c++)
                    *to++ = params[0].value[(std::size_t(c) * s_.kernel + ky) * patch_step_ + t];
    }

    void forward(const T* x, T* y, const Pass& pass) override {
        for (int q = 0; q < pass.batch; q++, x += in.size(), y += out.size()) {
            deal_out(x);
            std::fill_n(&count_[q * out.c], out.c, 0);
            for (int row = 0; row < out.h; row++)
                for (int column = 0; column < out.w; column += L) {
                    compute(row, column, q);
                    const int windows = std::min(L, out.w - column);
                    turn_channels_last(pooled_.data(), out.c, y + out.at(row, column), out.stored, windows);
                }
        }
    }

    void backward(const T* x, const T*, T* gy, T*, const Pass& pass) override {
        if (!pass.sgd) return;
        for (auto& p : params) p.grad.clear();
        const std::size_t patch = std::size_t(s_.kernel) * patch_step_;
        for (int q = 0; q < pass.batch; q++, x += in.size(), gy += out.size())
            for (int c = 0; c < out.c; c++) {
                const std::size_t list = std::size_t(q) * out.c + c;
                const Alive<T> alive{&patch_list_[list * room_], &target_list_[list * room_], count_[list]};
                in_chunks(int(shift_.size()), kPatchVectors, [&](int first, int vectors) {
                    const T sum = add_alive_for<T>(part_, vectors)(x, gy + c, alive, &shift_[first],
                                                                   &params[0].grad[c * patch + first * part_]);
                    if (first == 0 && s_.bias) params[1].grad[c] += sum;
                });
            }
        clear_surplus(params[0].grad.data());
    }

    using Layer<T>::in;
    using Layer<T>::out;
    using Layer<T>::params;

private:
    static constexpr int L = kLanes<T>;

    void lay_out_parameters() {
        const int k = s_.kernel;
        params.resize(s_.bias ? 2 : 1);
        params[0].lay_out(s_.name + ".weight", {s_.out, s_.in, k, k}, round_up(s_.out * k * patch_step_, L));
        std::size_t i = 0;
        for (int o = 0; o < s_.out; o++)
            for (int c = 0; c < s_.in; c++)
                for (int ky = 0; ky < k; ky++)
                    for (int kx = 0; kx < k; kx++)
                        params[0].offset[i++] = (o * k + ky) * patch_step_ + kx * in.stored + c;
        bias_ = Buffer<T>(out.c);
        if (!s_.bias) return;
        params[1].lay_out(s_.name + ".bias", {s_.out}, round_up(s_.out, L));
        std::iota(params[1].offset.begin(), params[1].offset.end(), 0);
    }

    // Windows that are neighbours begin `step` columns apart: a row of the input is dealt out to streams, one for each
    // channel of `step` columns, in which neighbours are one element apart.
    void lay_out_reach() {
        const int step = s_.pool_stride * s_.stride, last = (s_.pool - 1) * s_.stride + s_.kernel - 1;
        streams_ = step * in.stored;
        plane_ = round_up(out.w, L) + last / step;
        plane_ = std::max(plane_, (row_ + streams_ - 1) / streams_);
        down_ = std::ptrdiff_t(s_.stride) * streams_ * plane_;
        for (int ky = 0; ky < s_.kernel; ky++)
            for (int kx = 0; kx < s_.kernel; kx++)
                for (int c = 0; c < in.stored; c++)
                    for (int dx = 0; dx < s_.pool; dx++) {
                        const int column = dx * s_.stride + kx, stream = column % step * in.stored + c;
                        offset_.push_back((ky * streams_ + stream) * plane_ + column / step);
                    }
        for (int dy = 0; dy < s_.pool; dy++)
            for (int dx = 0; dx < s_.pool; dx++) window_.push_back(s_.stride * (dy * row_ + dx * in.stored));
    }

    void deal_out(const T* x) {
        T* to = planes_.data();
        for (int row = 0; row < in.h + 2 * in.pad; row++, x += row_, to += std::size_t(streams_) * plane_)
            deal(x, row_, streams_, to, plane_);
    }

    // A vector of windows, all channels: their values to pooled_, and those alive to the lists.
    void compute(int row, int column, int sample) {
        const int step = s_.pool_stride * s_.stride, pixels = s_.pool * s_.pool;
        const T* from = planes_.data() + std::size_t(row) * step * streams_ * plane_ + column;
        const Reach reach{offset_.data(), s_.kernel * patch_row_, down_};
        const T* bias = s_.bias ? params[1].value.data() : bias_.data();
        const Vec<Index<T>> lane = load(lane_);
        const Vec<Index<T>> real = lane < splat(Index<T>(out.w - column));
        const Vec<Index<T>> patch =
            lane * Index<T>(step * in.stored) + Index<T>(step * (row * row_ + column * in.stored));
        const Vec<Index<T>> target = lane * Index<T>(out.stored) + Index<T>(out.at(row, column));
        in_chunks(out.c, row_channels(pixels), [&](int first, int channels) {
            row_sums_for<T>(s_.pool, channels)(from, reach, packed_.data() + first, out.c, bias + first, sums_.data());
            for (int c = 0; c < channels; c++) {
                const std::size_t list = std::size_t(sample) * out.c + first + c;
                const Pooled best = pool(&sums_[c * pixels * L], real);
                store(&pooled_[(first + c) * L], best.value);
                const std::size_t end = list * room_ + count_[list];
                count_[list] += keep_lanes<T>(best.alive, patch + best.pixel, target, &patch_list_[end],
                                              &target_list_[end]);
            }
        });
    }

    struct Pooled {
        Vec<T> value;
        Vec<Index<T>> pixel, alive;
    };
    // The largest of a window's pixels and its patch within the window's; the first of equals, as in PyTorch.
    Pooled pool(const T* pixels, Vec<Index<T>> real) const {
        Pooled best{load(pixels), {}, real};
        for (std::size_t p = 1; p < window_.size(); p++) {
            const Vec<T> value = load(pixels + p * L);
            const Vec<Index<T>> larger = value > best.value;
            best.value = larger ? value : best.value;
            best.pixel = larger ? splat(Index<T>(window_[p])) : best.pixel;
        }
        if (s_.relu) {
            const Vec<Index<T>> dead = best.value <= Vec<T>{};  // not !(value > 0): a NaN stays visible
            best.value = dead ? Vec<T>{} : best.value;
            best.alive &= ~dead;
        }
        return best;
    }

    // A patch row is read in whole parts; what lies beyond its end is not part of the patch.
    void clear_surplus(T* grad) const {
        for (int row = 0; row < out.c * s_.kernel; row++)
            std::fill(grad + row * patch_step_ + patch_row_, grad + (row + 1) * patch_step_, T(0));
    }

    ConvShape s_;
    int row_, patch_row_;         // elements of an input row, of a patch's row
    int part_, patch_step_;       // lanes in which a patch's row is summed, its elements in whole parts
    int streams_, plane_, room_;  // streams of a row, elements of a stream, of a list
    std::ptrdiff_t down_;         // from one row of a window to the next
    std::vector<std::ptrdiff_t> offset_;  // where taps are, for each column of a window
    std::vector<int> window_;     // pixels of a window, as input offsets from its first
    std::vector<int> shift_;      // parts of a patch, as input offsets
    Index<T> lane_[L];
    Buffer<T> packed_, bias_;
    Buffer<T> planes_, sums_, pooled_;  // of one sample; of one vector of windows: [channel][pixel], [channel]
    Buffer<Index<T>> patch_list_, target_list_;
    std::vector<int> count_;  // of each list
};

}  // namespace feddag
