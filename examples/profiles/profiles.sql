CREATE TABLE IF NOT EXISTS profiles (
    user_id    TEXT PRIMARY KEY,
    first_name TEXT NOT NULL,
    last_name  TEXT NOT NULL,
    email      TEXT NOT NULL UNIQUE,
    phone      TEXT,
    address    TEXT
);
INSERT INTO profiles VALUES ('u-1', '太郎', '山田', 'taro@example.com', '090-0000-0001', '東京都千代田区');
INSERT INTO profiles VALUES ('u-2', '花子', '鈴木', 'hanako@example.com', NULL, NULL);
