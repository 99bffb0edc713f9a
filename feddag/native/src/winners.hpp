// The backward pass of a convolution over its winners: for every pooling window and channel the pixel with the largest
// value (the argmax), unless ReLU zeroes it. They are listed pixel by pixel, which is the order of the input gradient
// (a pixel's patch receives the weights of the channels that won there, each times its gradient), and then sorted by
// channel, which is the order of the weight gradient (a channel receives the patches it won with, each times its
// gradient). Both sums hold a chunk of the patch in registers while they go through a list.
#pragma once
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "compact.hpp"
#include "layer.hpp"

namespace feddag {

constexpr int kChunk = kVectorBytes == 64 ? 13 : 8;  // vectors of a patch held in registers at once
constexpr int kTaps = kVectorBytes == 64 ? 27 : 12;   // sums of single taps held in registers at once

// A winner in its channel's list: the patch it won with and its gradient.
template <class T> struct Win {
    Index<T> patch;
    T grad;
};

// sum[v] += gradient * x[patch + shift[v]] over a list, V vectors at once.
template <class T, int V> void add_listed(const T* x, const int* shift, const Win<T>* win, const Win<T>* end, T* sum) {
    constexpr int L = kLanes<T>, Sets = V <= 6 ? 2 : 1;  // a second set of sums hides latency when there are few
    Vec<T> total[Sets][V] = {};
    std::ptrdiff_t move[V];
    FEDDAG_UNROLL for (int v = 0; v < V; v++) move[v] = shift[v];
    for (; win + Sets <= end; win += Sets)
        for (int k = 0; k < Sets; k++)
            FEDDAG_UNROLL for (int v = 0; v < V; v++) total[k][v] += win[k].grad * load(x + win[k].patch + move[v]);
    for (; win < end; win++)
        FEDDAG_UNROLL for (int v = 0; v < V; v++) total[0][v] += win->grad * load(x + win->patch + move[v]);
    FEDDAG_UNROLL for (int v = 0; v < V; v++) {
        for (int k = 1; k < Sets; k++) total[0][v] += total[k][v];
        store(sum + v * L, load(sum + v * L) + total[0][v]);
    }
}

// gx[shift[v]] += sum over a list of value[e] * weights[number[e] * patch + v], V vectors at once, stored in ascending
// order because the surplus of one may overlap the next.
template <class T, int V>
void scatter_listed(const T* weights, std::ptrdiff_t patch, const int* shift, const int* number, const T* value,
                   int count, T* gx) {
    constexpr int L = kLanes<T>;
    Vec<T> total[V];
    FEDDAG_UNROLL for (int v = 0; v < V; v++) total[v] = load(gx + shift[v]);
    for (int e = 0; e < count; e++) {
        const T* row = weights + number[e] * patch;
        FEDDAG_UNROLL for (int v = 0; v < V; v++) total[v] += value[e] * load(row + v * L);
    }
    FEDDAG_UNROLL for (int v = 0; v < V; v++) store(gx + shift[v], total[v]);
}

// The windows of a batch: of each its input and output offset, the pixels of any, steps from sample to sample.
struct Windows {
    const std::vector<int>&origin, &target, &pixel;
    int samples, channels;
    std::size_t x_step, grad_step;
};

// sum[t] += x[tap[t]] * gradient over all pixels and the channels that won there, V taps at once. Most products are
// zero, but where a patch is small, that is cheaper than keeping lists.
template <class T, int V>
void add_taps(const T* x, const T* grad, const Index<T>* from, const Windows& w, const int* tap, T* sum) {
    Vec<T> total[V] = {};
    for (int q = 0; q < w.samples; q++, x += w.x_step, grad += w.grad_step)
        for (std::size_t i = 0; i < w.origin.size(); i++, from += w.channels) {
            const Vec<T> all = load(grad + w.target[i]);
            const Vec<Index<T>> winner = load(from);
            for (int pixel : w.pixel) {
                const Index<T> here = w.origin[i] + pixel;
                const Vec<T> won = winner == here ? all : Vec<T>{};
                FEDDAG_UNROLL for (int v = 0; v < V; v++) total[v] += won * x[here + tap[v]];
            }
        }
    FEDDAG_UNROLL for (int v = 0; v < V; v++) store(sum + v * kLanes<T>, total[v]);
}

template <class T, int... V> constexpr auto tap_adders(std::integer_sequence<int, V...>) {
    return std::array{add_taps<T, V + 1>...};
}
template <class T, int... V> constexpr auto adders(std::integer_sequence<int, V...>) {
    return std::array{add_listed<T, V + 1>...};
}
template <class T, int... V> constexpr auto scatterers(std::integer_sequence<int, V...>) {
    return std::array{scatter_listed<T, V + 1>...};
}

// Calls work(first, count) for chunks of nearly equal size.
template <class Work> void in_chunks(int all, int most, Work work) {
    const int chunks = (all + most - 1) / most;
    for (int i = 0, first = 0; i < chunks; i++) {
        const int count = (all - first) / (chunks - i);
        work(first, count);
        first += count;
    }
}

template <class T> class WinnerLists {
public:
    WinnerLists() = default;
    // Room for the winners of `windows` windows of `pixels` pixels.
    WinnerLists(int windows, int pixels, int channels)
        : most_(windows),
          number_(std::size_t(windows) * channels + kLanes<T>),
          grad_(number_.size()),
          patch_(number_.size()),
          by_channel_(std::size_t(channels) * windows),
          end_(channels) {
        pixels_.reserve(std::size_t(windows) * pixels);
    }

    void clear() { pixels_.clear(), count_ = 0; }

    // Lists a window's winners: gradient and winning patch of every channel. The window's patch is `origin` in its
    // sample, its pixels' are `window` further, the sample begins at `sample`.
    void add(const T* grad, const Index<T>* from, int channels, std::size_t sample, int origin,
             const std::vector<int>& window) {
        for (int pixel : window) {
            const Index<T> here = origin + pixel, patch = Index<T>(sample) + here;
            const int count = compact<T>(from, here, grad, channels, &number_[count_], &grad_[count_]);
            for (int e = 0; e < count; e += kLanes<T>) store(&patch_[count_ + e], splat(patch));
            if (count) pixels_.push_back({patch, count_, count});
            count_ += count;
        }
    }

    void sort_by_channel() {
        for (std::size_t c = 0; c < end_.size(); c++) end_[c] = by_channel_.data() + c * most_;
        const int* number = number_.data();
        const T* grad = grad_.data();
        const Index<T>* patch = patch_.data();
        Win<T>** end = end_.data();
        for (int e = 0, count = count_; e < count; e++) *end[number[e]]++ = {patch[e], grad[e]};
    }
    void add_patches(const T* x, const std::vector<int>& shift, T* grad) const {
        static constexpr auto add = adders<T>(std::make_integer_sequence<int, kChunk>());
        const std::size_t patch = shift.size() * kLanes<T>;
        in_chunks(int(shift.size()), kChunk, [&](int first, int vectors) {
            for (std::size_t c = 0; c < end_.size(); c++) {
                const Win<T>* begin = by_channel_.data() + c * most_;
                T* sum = grad + c * patch + first * kLanes<T>;
                if (begin < end_[c]) add[vectors - 1](x, &shift[first], begin, end_[c], sum);
            }
        });
    }
    void scatter_patches(const T* weights, const std::vector<int>& shift, T* gx) const {
        static constexpr auto scatter = scatterers<T>(std::make_integer_sequence<int, kChunk>());
        const std::ptrdiff_t patch = std::ptrdiff_t(shift.size()) * kLanes<T>;
        in_chunks(int(shift.size()), kChunk, [&](int first, int vectors) {
            for (const WinningPixel& pixel : pixels_)
                scatter[vectors - 1](weights + first * kLanes<T>, patch, &shift[first], &number_[pixel.first],
                                    &grad_[pixel.first], pixel.count, gx + pixel.patch);
        });
    }

private:
    struct WinningPixel {  // a pixel that won: its patch, and its part of the list
        Index<T> patch;
        int first, count;
    };
    int most_ = 0, count_ = 0;
    std::vector<WinningPixel> pixels_;
    std::vector<int> number_;          // winners by pixel: channel,
    std::vector<T> grad_;          // gradient
    std::vector<Index<T>> patch_;      // and patch
    std::vector<Win<T>> by_channel_;   // winners by channel
    std::vector<Win<T>*> end_;
};

}  // namespace feddag
