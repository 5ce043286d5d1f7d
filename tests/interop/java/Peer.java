import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** One thread of one Redisson client that does what it is told: VERB NAME [NUMBER], an answer each. */
public class Peer {
    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.setThreads(2);
        config.setNettyThreads(2);
        config.useSingleServer().setAddress("redis://127.0.0.1:" + args[0])
            .setConnectionMinimumIdleSize(2).setConnectionPoolSize(4)
            .setSubscriptionConnectionMinimumIdleSize(1).setSubscriptionConnectionPoolSize(2);
        RedissonClient client = Redisson.create(config);
        BufferedReader told = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        System.out.println("ready");
        for (String line; (line = told.readLine()) != null; ) {
            String[] words = line.split(" ");
            String answer;
            try {
                answer = obey(client, words[0], words[1], words.length > 2 ? Long.parseLong(words[2]) : 0);
            } catch (IllegalMonitorStateException notOurs) {
                answer = "not mine";
            }
            System.out.println(answer);
        }
        client.shutdown();
    }

    private static String obey(RedissonClient client, String verb, String name, long number)
            throws InterruptedException {
        RLock lock = client.getLock(name);
        switch (verb) {
            case "try": return "" + lock.tryLock();
            case "wait": return "" + lock.tryLock(number, TimeUnit.MILLISECONDS);
            case "lease": return "" + lock.tryLock(0, number, TimeUnit.MILLISECONDS);
            case "force": return "" + lock.forceUnlock();
            case "locked": return "" + lock.isLocked();
            case "unlock": lock.unlock(); return "done";
            case "count": count(client, lock, number); return "done";
            default: return "?";
        }
    }

    /** What is not atomic, so often, under the lock. */
    private static void count(RedissonClient client, RLock lock, long rounds) throws InterruptedException {
        RBucket<String> sum = client.getBucket(lock.getName() + "-sum", StringCodec.INSTANCE);
        for (long i = 0; i < rounds; i++) {
            lock.lock();
            try {
                String before = sum.get();
                Thread.sleep(1);
                sum.set("" + ((before == null ? 0 : Integer.parseInt(before)) + 1));
            } finally {
                lock.unlock();
            }
        }
    }
}
